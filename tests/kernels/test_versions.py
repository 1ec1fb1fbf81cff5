"""Which schema versions the kernels of these families serve: all that opsets from 7 on can import."""

from __future__ import annotations

import onnx
import pytest

from hetero import kernels
from hetero.kernels.base import lookup, registered

OPERATORS = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "ArgMax",
    "ArgMin",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BatchNormalization",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Cast",
    "CastLike",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "CumProd",
    "CumSum",
    "DequantizeLinear",
    "Div",
    "Dropout",
    "DynamicQuantizeLinear",
    "Einsum",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "Gemm",
    "Greater",
    "GreaterOrEqual",
    "GroupNormalization",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LRN",
    "LayerNormalization",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "MatMul",
    "MatMulInteger",
    "Max",
    "Mean",
    "MeanVarianceNormalization",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "QuantizeLinear",
    "RMSNormalization",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "TopK",
    "Where",
    "Xor",
]
FIRST_OPSET = 7
BEFORE_THEY_WERE_STANDARD = {"LayerNormalization": set(range(1, 17))}
"""onnxruntime's exporters wrote it into models of these opsets, which ONNX has no schema for."""


def known_versions(op_type: str) -> set[int]:
    return {
        s.since_version
        for s in onnx.defs.get_all_schemas_with_history()
        if s.domain == "" and s.name == op_type
    }


@pytest.mark.parametrize("op_type", [op for op in OPERATORS if onnx.defs.has(op)])
def test_every_importable_version_is_served(op_type: str) -> None:
    kernels.load_all()
    versions = known_versions(op_type)
    importable = {v for v in versions if v >= FIRST_OPSET} | {
        max((v for v in versions if v <= FIRST_OPSET), default=min(versions))
    }
    assert not {v for v in importable if lookup("", op_type, v) is None}


def test_no_kernel_claims_a_version_between_two_schemas() -> None:
    kernels.load_all()
    newest = onnx.defs.onnx_opset_version()
    for definition in registered():
        if definition.domain == "" and definition.op_type in OPERATORS:
            claimed = {v for v in definition.versions if v <= newest}
            claimed -= BEFORE_THEY_WERE_STANDARD.get(definition.op_type, set())
            assert claimed <= known_versions(definition.op_type), definition.op_type
