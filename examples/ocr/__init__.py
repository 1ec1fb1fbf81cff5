"""Read the text on a page: two models, each split over execution providers, each checked against onnxruntime."""
