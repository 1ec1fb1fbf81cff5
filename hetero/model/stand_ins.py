"""Standard nodes that stand in, while types are inferred, for operators that onnx has no schema of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import onnx
import onnx.defs
from onnx import TensorProto, helper

UNKNOWN = "hetero.inference/unknown"
"""A value of which nothing is known: what an output's shape is said to follow from where no rule tells it."""

Rule = Callable[[onnx.NodeProto, str], onnx.NodeProto | None]
"""(node, name of one of its outputs) -> the standard node whose inferred output that one equals in dtype (and shape),
None where the node does not say."""


def _operand(node: onnx.NodeProto, index: int) -> str:
    return str(node.input[index]) if index < len(node.input) else ""


def like(index: int) -> Rule:
    """Dtype and shape of input `index`."""

    def rule(node: onnx.NodeProto, output: str) -> onnx.NodeProto | None:
        name = _operand(node, index)
        return helper.make_node("Identity", [name], [output]) if name else None

    return rule


def of(dtype: int, index: int | None = None) -> Rule:
    """This dtype, in the shape of input `index` where one is named."""

    def rule(node: onnx.NodeProto, output: str) -> onnx.NodeProto | None:
        name = UNKNOWN if index is None else _operand(node, index)
        return helper.make_node("Cast", [name], [output], to=dtype) if name else None

    return rule


def cast_like(index: int, other: int) -> Rule:
    """The shape of input `index`, the dtype of input `other`."""

    def rule(node: onnx.NodeProto, output: str) -> onnx.NodeProto | None:
        names = [_operand(node, index), _operand(node, other)]
        return helper.make_node("CastLike", names, [output]) if all(names) else None

    return rule


def dtype_of(*indices: int, default: int | None = None) -> Rule:
    """The dtype of the first of these inputs that is there, in a shape that stays open; `default` where none is."""

    def rule(node: onnx.NodeProto, output: str) -> onnx.NodeProto | None:
        for index in indices:
            if name := _operand(node, index):
                return helper.make_node("Expand", [name, UNKNOWN], [output])
        return None if default is None else of(default)(node, output)

    return rule


def standard(op_type: str, n_inputs: int, *dropped: str) -> Rule:
    """What `op_type` gives for the first `n_inputs` inputs and the node's attributes but for `dropped`."""

    def rule(node: onnx.NodeProto, output: str) -> onnx.NodeProto:
        found = helper.make_node(op_type, list(node.input[:n_inputs]), [output])
        found.attribute.extend(a for a in node.attribute if a.name not in dropped)
        return found

    return rule


def _product(node: onnx.NodeProto, output: str) -> onnx.NodeProto | None:
    if any(a.name.startswith("trans") and a.i for a in node.attribute):
        return dtype_of(0)(node, output)
    return helper.make_node("MatMul", list(node.input[:2]), [output])


def _hash(node: onnx.NodeProto, output: str) -> onnx.NodeProto | None:
    signed = any(a.name == "positive" and not a.i for a in node.attribute)
    return of(TensorProto.INT32 if signed else TensorProto.UINT32, 0)(node, output)


_FLOAT, _INT32, _INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
_ACTIVATION = ("activation", "activation_params", "activation_alpha", "activation_beta", "activation_gamma")

_ONNX: dict[str, tuple[Rule, ...]] = {
    "LayerNormalization": (like(0), of(_FLOAT), of(_FLOAT)),
    "SimplifiedLayerNormalization": (cast_like(0, 1), of(_FLOAT)),
    **dict.fromkeys(("Affine", "ScaledTanh", "ParametricSoftplus", "Scale", "ImageScaler"), (like(0),)),
    "Crop": (dtype_of(0),),
}
_MICROSOFT: dict[str, tuple[Rule, ...]] = {
    # of the first input's dtype and shape
    **dict.fromkeys(
        ("Gelu", "QuickGelu", "FastGelu", "BiasGelu", "Inverse", "Trilu", "RotaryEmbedding", "MRotaryEmbedding",
         "MoE", "QMoE", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"),
        (like(0),),
    ),
    # of its dtype alone
    **dict.fromkeys(
        ("CDist", "UnfoldTensor", "ExpandDims", "Range", "Pad", "GatherND", "GridSample", "CropAndResize",
         "ConvTransposeWithDynamicPads", "QLinearAdd", "QLinearMul", "QLinearConv", "QLinearGlobalAveragePool",
         "QLinearAveragePool", "QLinearReduceMean", "NhwcMaxPool", "MatMulNBits", "MatMulBnb4",
         "DynamicQuantizeMatMul"),
        (dtype_of(0),),
    ),
    **dict.fromkeys(
        ("Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention",
         "SparseAttention", "DynamicQuantizeLSTM"),
        (dtype_of(0),) * 4,
    ),
    "FusedConv": (standard("Conv", 3, *_ACTIVATION),),
    "FusedGemm": (standard("Gemm", 3, *_ACTIVATION),),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), (_product,)),
    **dict.fromkeys(
        ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), (like(0), of(_FLOAT), of(_FLOAT), like(0))
    ),
    "SimplifiedLayerNormalization": (cast_like(0, 1), of(_FLOAT)),
    "EmbedLayerNormalization": (dtype_of(2), of(_INT32), dtype_of(2)),
    "QEmbedLayerNormalization": (of(_FLOAT), of(_INT32)),
    "Unique": (dtype_of(0), of(_INT64), of(_INT64)),
    "NGramRepeatBlock": (like(1),),
    "DynamicTimeWarping": (of(_INT32),),
    "MurmurHash3": (_hash,),
    "Tokenizer": (of(TensorProto.STRING),),
    **dict.fromkeys(("QLinearConcat", "QLinearWhere", "DequantizeLinear"), (dtype_of(1),)),
    "QuantizeLinear": (dtype_of(2, default=TensorProto.UINT8),),
    "QGemm": (dtype_of(8, default=_FLOAT),),
    "QAttention": (dtype_of(3), dtype_of(3)),
    "MatMulIntegerToFloat": (dtype_of(2),),
    "MatMulInteger16": (of(_INT32),),
    "GatherBlockQuantized": (dtype_of(2),),
}  # fmt: skip
RULES: dict[tuple[str, str], tuple[Rule, ...]] = {
    **{("", name): rules for name, rules in _ONNX.items()},
    **{("com.microsoft", name): rules for name, rules in _MICROSOFT.items()},
    ("hetero", "DotGeneral"): (dtype_of(0),),
}
"""(domain, operator) -> a rule for each output; outputs past the last one stay open."""


def stand_in(proto: onnx.ModelProto, functions: Collection[tuple[str, str]] = ()) -> None:
    """Replace, in the graph and its bodies, nodes that onnx has no schema of by nodes that give their outputs' types.

    `functions`: (domain, name) of those that the model defines itself, which onnx looks into.
    """
    opsets = {o.domain: o.version for o in proto.opset_import}
    rules = {key: found for key, found in RULES.items() if key not in functions}
    if _replace(proto.graph, rules, opsets):
        proto.graph.input.add(name=UNKNOWN)
        if "" not in opsets:
            proto.opset_import.add(domain="", version=onnx.defs.onnx_opset_version())


def _replace(
    graph: onnx.GraphProto, rules: Mapping[tuple[str, str], tuple[Rule, ...]], opsets: Mapping[str, int]
) -> bool:
    """Whether a node of `graph` or of a body in it was replaced."""
    nodes: list[onnx.NodeProto] = []
    here = inside = False
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                inside |= _replace(attribute.g, rules, opsets)
        found = rules.get((node.domain, node.op_type))
        if found is None or onnx.defs.has(node.op_type, opsets.get(node.domain, 1), node.domain):
            nodes.append(node)
            continue
        here = True
        for output, rule in zip(node.output, found, strict=False):
            substitute = rule(node, output) if output else None
            if substitute is not None:
                nodes.append(substitute)
    if here:
        kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del graph.node[:]
        graph.node.extend(kept)
    return here or inside
