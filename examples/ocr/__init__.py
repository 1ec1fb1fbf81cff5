"""Read the text on a page: two models, each split over providers and checked against onnxruntime."""
