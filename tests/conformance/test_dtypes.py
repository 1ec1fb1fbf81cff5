"""Every operator in every dtype that its newest schema allows, and in its older versions, against a peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import AttributeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero import kernels
from hetero.errors import UnsupportedError
from hetero.kernels.base import lookup
from hetero.kernels.reference import reference_compile
from hetero.types import STRING, DataType, SequenceValue, numpy_dtype
from tests.conformance.variants import Variant, formal, schemas, variants
from tests.kernels.harness import operation, run_op, specs_of

TOLERANCE = {np.float16: 2e-3, ml_dtypes.bfloat16: 1.6e-2, np.float32: 1e-4, np.float64: 1e-6}
COMPLEX_TOLERANCE = 1e-4

Where = Callable[[Variant], bool]


def everywhere(variant: Variant) -> bool:
    """All variants of an operator."""
    return True


def of(*dtypes: DataType) -> Where:
    """The variants in which a type variable is one of these."""
    return lambda variant: any(t in dtypes for t in variant.dtypes.values())


def before(version: int, *dtypes: DataType) -> Where:
    """The variants of older schemas, of these dtypes where some are named."""
    return lambda variant: variant.version < version and (not dtypes or of(*dtypes)(variant))


def mixed(variant: Variant) -> bool:
    """Type variables that may differ do."""
    return len(set(variant.dtypes.values())) > 1


def mixed_signs(variant: Variant) -> bool:
    """Bytes without a sign times bytes with one."""
    return variant.dtypes.get("T1") == DataType.UINT8 and variant.dtypes.get("T2") == DataType.INT8


FLOATS = (DataType.FLOAT16, DataType.FLOAT, DataType.DOUBLE)
FLOAT8 = (DataType.FLOAT8E4M3FN, DataType.FLOAT8E4M3FNUZ, DataType.FLOAT8E5M2, DataType.FLOAT8E5M2FNUZ)
INTEGERS = (DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64,
            DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64)  # fmt: skip

EXCLUDED: dict[str, tuple[str, Where]] = {
    "Attention": ("an integer mask is not added by anyone", of(*INTEGERS)),
    "Bernoulli": ("draws anew at every call", everywhere),
    "BitCast": ("only to a dtype of the same width, which the case fixes", lambda v: _width(v) != 32),
    "Dropout": ("draws anew at every call when training", lambda v: "T2" in v.dtypes),
    "Col2Im": ("texts cannot be added up", of(DataType.STRING)),
    "DequantizeLinear": ("one scale for all before version 13", before(13)),
    "GridSample": ("texts cannot be weighed", of(DataType.STRING)),
    "LabelEncoder": ("the keys of the case are texts", lambda v: v.dtypes["T1"] != DataType.STRING),
    "Mod": ("fmod must be 1 for floats before version 28", before(28, *FLOATS)),
    "QuantizeLinear": ("one scale for all before version 13", before(13)),
    "Resize": ("texts and truth values cannot be weighed", of(DataType.STRING, DataType.BOOL)),
    "ScatterND": ("max came with version 18; texts have none", lambda v: v.version < 18 or _texts(v)),
    "SplitToSequence": ("yields a sequence", everywhere),
    "TfIdfVectorizer": ("the pool of the case holds integers", of(DataType.STRING)),
}
"""Operator -> why it is left out, and which of its variants that holds for."""
UNJUDGED: dict[str, tuple[str, Where]] = {
    "AffineGrid": ("onnx.reference yields float32", of(DataType.BFLOAT16)),
    "Adam": ("onnx.reference yields the dtype of the rate", mixed),
    "CastLike": (
        "the text leaves negative numbers as float8e8m0 open, and how many digits a text has",
        of(DataType.FLOAT8E8M0, DataType.STRING),
    ),
    "CenterCropPad": ("onnx.reference pads texts with '0'", of(DataType.STRING)),
    "DequantizeLinear": ("onnx.reference reads a float4 zero point otherwise", of(DataType.FLOAT4E2M1)),
    "Det": ("onnx.reference yields float64", of(DataType.BFLOAT16)),
    "GridSample": ("onnx.reference weighs in the grid's dtype", of(DataType.BFLOAT16)),
    "LayerNormalization": ("onnx.reference ignores stash_type", of(DataType.BFLOAT16)),
    "Momentum": ("onnx.reference yields the dtype of the rate", mixed),
    "QLinearMatMul": ("float8 times int8: a product on a rounding boundary", of(*FLOAT8)),
    "QuantizeLinear": (
        "onnx.reference reads a float8 zero point otherwise, and divides in half precision",
        of(*FLOAT8, DataType.FLOAT16, DataType.BFLOAT16),
    ),
    "RMSNormalization": ("onnx.reference yields X's dtype, the schema has the scale's", mixed),
    "ReduceSumSquare": ("onnx.reference yields uint64", of(DataType.UINT32)),
    "Resize": (
        "onnx.reference drops imaginary parts and rounds integers, which onnxruntime truncates",
        lambda v: mixed(v) or of(DataType.COMPLEX64, DataType.COMPLEX128)(v),
    ),
}
"""Operator -> why its peer is not right; the kernel's contract and the schema still hold."""
REFERENCE_ONLY: dict[str, tuple[str, Where]] = {
    "DFT": ("onnxruntime loses three digits", everywhere),
    "QLinearMatMul": ("without VNNI onnxruntime adds pairs of products in 16 bits", mixed_signs),
}
"""Operator -> why onnxruntime is not asked."""

WITHOUT_VARIANTS = {
    "operators with bodies": "If Loop Scan SequenceMap",
    "operators over sequences and optionals": "SequenceLength SequenceAt SequenceConstruct ConcatFromSequence"
    " SequenceEmpty SequenceInsert SequenceErase Optional",
    "draws": "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial",
    "no official case": "MaxRoiPool GlobalLpPool",
    "no official case; models of trees and vectors": "ZipMap TreeEnsembleClassifier TreeEnsembleRegressor SVMRegressor"
    " SVMClassifier LinearClassifier LinearRegressor DictVectorizer CategoryMapper CastMap Scaler Imputer Normalizer"
    " FeatureVectorizer OneHotEncoder",
    "differentiates a graph": "Gradient",
}
"""Why there is no variant -> of these operators."""


def _width(variant: Variant) -> int:
    return 8 * variant.inputs[0].itemsize


def _texts(variant: Variant) -> bool:
    return DataType.STRING in variant.dtypes.values()


def listed(table: dict[str, tuple[str, Where]], variant: Variant) -> bool:
    """Whether the table has this variant."""
    found = table.get(variant.node.op_type)
    return found is not None and found[1](variant)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The node's attributes in Python's terms, as the harness takes them."""

    def value(attribute: onnx.AttributeProto) -> Any:
        if attribute.type == AttributeProto.TENSOR:
            return numpy_helper.to_array(attribute.t)
        found = helper.get_attribute_value(attribute)
        if isinstance(found, bytes):
            return found.decode()
        if isinstance(found, int | float):
            return found
        return [v.decode() if isinstance(v, bytes) else v for v in found]

    return {a.name: value(a) for a in node.attribute}


def run(variant: Variant) -> list[Any]:
    """Its outputs: from our kernel under the harness's eyes, or from onnx.reference where the CPU falls back to it."""
    node, inputs = variant.node, variant.inputs
    keywords = {
        "opset": variant.version,
        "domain": node.domain,
        "n_outputs": len(node.output),
        "omit": [k for k, name in enumerate(node.output) if not name],
        **attributes(node),
    }
    op = operation(node.op_type, inputs, **keywords)
    if lookup(op.domain, op.op_type, op.version) is not None:
        try:
            return run_op(node.op_type, inputs, **keywords)
        except UnsupportedError:
            pass
    compiled = reference_compile(op, specs_of(inputs, range(len(inputs))))
    assert compiled.run is not None
    return list(compiled.run(inputs))


def peers(variant: Variant) -> tuple[list[Any] | None, str]:
    """What onnxruntime gives, or onnx.reference where it does not take the node; None where neither does."""
    model, feeds = variant.model(), variant.feeds()
    if not listed(REFERENCE_ONLY, variant):
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            session = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            return list(session.run(None, feeds)), "onnxruntime"
        except Exception:  # onnxruntime raises a dozen types for "does not take this"
            pass
    try:
        with np.errstate(all="ignore"):
            copies = {name: x.copy() for name, x in feeds.items()}
            return list(ReferenceEvaluator(model).run(None, copies)), "onnx.reference"
    except Exception:  # whatever an implementation in NumPy stumbles over
        return None, "nobody"


def difference(got: Any, expected: Any) -> str | None:
    """How two outputs differ, None where they do not."""
    if isinstance(got, SequenceValue | list):
        pairs = zip(got, expected, strict=True)
        return next((d for g, e in pairs if (d := difference(g, e)) is not None), None)
    if got is None or expected is None:
        return None if got is expected else "only one has the output"
    expected = np.asarray(expected)
    if got.shape != expected.shape:
        return f"shape {got.shape}, not {expected.shape}"
    if got.dtype == STRING or expected.dtype.kind in "OUS":
        texts = [
            [v.decode() if isinstance(v, bytes) else str(v) for v in x.reshape(-1)] for x in (got, expected)
        ]
        return None if texts[0] == texts[1] else f"{texts[0][:4]}, not {texts[1][:4]}"
    if got.dtype != expected.dtype:
        return f"dtype {got.dtype}, not {expected.dtype}"
    tolerance = COMPLEX_TOLERANCE if got.dtype.kind == "c" else TOLERANCE.get(got.dtype.type)
    wide = [x.astype(np.float64) if x.dtype.kind in "fV" else x for x in (got, expected)]
    if tolerance is not None:
        same = np.isclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        same = (wide[0] == wide[1]) | ((wide[0] != wide[0]) & (wide[1] != wide[1]))
    return None if same.all() else f"{wide[0][~same][:4].tolist()}, not {wide[1][~same][:4].tolist()}"


def fault(variant: Variant) -> str | None:
    """What is wrong with what we make of it, None where nothing is."""
    try:
        got = run(variant)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    schema = schemas()[variant.node.domain, variant.node.op_type][variant.version]
    for index, value in enumerate(got):
        dtype = variant.dtypes.get(formal(schema.outputs, index).type_str)
        if isinstance(value, np.ndarray) and dtype is not None and value.dtype != numpy_dtype(dtype):
            return f"output {index} is {value.dtype}, the schema says {numpy_dtype(dtype)}"
    expected, peer = peers(variant)
    if expected is None or listed(UNJUDGED, variant):
        return None
    shown = [value for value, name in zip(got, variant.node.output, strict=True) if name]
    for index, (one, other) in enumerate(zip(shown, expected, strict=True)):
        wrong = difference(one, other)
        if wrong is not None:
            return f"output {index}: {wrong} ({peer})"
    return None


CHOSEN = {key: [v for v in found if not listed(EXCLUDED, v)] for key, found in variants().items()}


@pytest.mark.parametrize("key", [key for key, found in CHOSEN.items() if found], ids=lambda key: key[1])
def test_the_operator_takes_every_dtype(key: tuple[str, str]) -> None:
    kernels.load_all()
    faults = {str(variant): found for variant in CHOSEN[key] if (found := fault(variant)) is not None}
    assert faults == {}


def test_every_exception_is_of_an_operator_and_still_needed() -> None:
    kernels.load_all()
    for table in (EXCLUDED, UNJUDGED, REFERENCE_ONLY):
        for name, (_, where) in table.items():
            assert any(where(v) for key, found in variants().items() if key[1] == name for v in found), name


def test_what_has_no_variants_is_known() -> None:
    missing = {
        name for (domain, name), found in schemas().items() if found and (domain, name) not in variants()
    }
    assert missing == {name for names in WITHOUT_VARIANTS.values() for name in names.split()}
