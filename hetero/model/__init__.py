"""ONNX files to normalised onnx-ir graphs with types, weights and functions."""

from hetero.model.functions import inline
from hetero.model.inference import infer, value_type
from hetero.model.model import Model, load_model
from hetero.model.source import ModelSource
from hetero.model.weights import Weights

__all__ = ["Model", "ModelSource", "Weights", "infer", "inline", "load_model", "value_type"]
