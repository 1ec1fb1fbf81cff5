"""Which operator has which shape rule; one that is missing here leaves its outputs unknown, and demands nothing."""

from __future__ import annotations

from hetero.shapes.facts import Rule
from hetero.shapes.rules_compute import broadcasting, conv, gemm, matmul, pool, reduction, same
from hetero.shapes.rules_layout import (
    cast,
    concat,
    expand,
    flatten,
    gather,
    pad,
    reshape,
    shape,
    size,
    slice_,
    split,
    squeeze,
    tile,
    transpose,
    unsqueeze,
)

_ONE_FOR_ONE = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization BitwiseNot Ceil Celu Clip Cos Cosh CumSum "
    "DequantizeLinear Elu Erf Exp Floor Gelu GroupNormalization HardSigmoid HardSwish Hardmax "
    "InstanceNormalization IsInf IsNaN LayerNormalization LeakyRelu Log LogSoftmax LpNormalization LRN "
    "MeanVarianceNormalization Mish Neg Not QuantizeLinear Reciprocal Relu RMSNormalization Round Selu Shrink Sigmoid "
    "Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu"
)
_BROADCASTING = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min "
    "Mod Mul Or Pow Sub Sum Where Xor"
)
_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare"
)
RULES: dict[str, Rule] = {
    **dict.fromkeys(_ONE_FOR_ONE.split(), same),
    **dict.fromkeys(_BROADCASTING.split(), broadcasting),
    **dict.fromkeys(_REDUCTIONS.split(), reduction),
    "AveragePool": pool,
    "Cast": cast,
    "Concat": concat,
    "Conv": conv,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "Gemm": gemm,
    "Identity": cast,
    "MatMul": matmul,
    "MaxPool": pool,
    "Pad": pad,
    "Reshape": reshape,
    "Shape": shape,
    "Size": size,
    "Slice": slice_,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
