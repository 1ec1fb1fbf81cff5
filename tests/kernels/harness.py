"""Running one operator through its kernel under the strictest reading of the contract, and through a peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper
from onnx.reference import ReferenceEvaluator

from hetero import kernels
from hetero.kernels.base import Compiled, lookup
from hetero.program.operation import Operation
from hetero.types import ABSENT, FLOATS, SequenceSpec, SequenceValue, Spec, TensorSpec, onnx_dtype

GUARD = 64
POISON = 0xFF


def operation(
    op_type: str,
    inputs: Sequence[Any],
    *,
    opset: int,
    domain: str = "",
    n_outputs: int = 1,
    omit: Sequence[int] = (),
    **attributes: Any,
) -> Operation:
    """The operation of a node whose inputs are given where they are not None; outputs `omit` are left out."""
    version = opset
    if onnx.defs.has(op_type, opset, domain):
        version = onnx.defs.get_schema(op_type, opset, domain).since_version
    return Operation(
        domain,
        op_type,
        version,
        {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()},
        tuple(x is not None for x in inputs),
        tuple(i not in omit for i in range(n_outputs)),
        name="node",
        opset=opset,
    )


def specs_of(inputs: Sequence[Any], values: Sequence[int] = ()) -> list[Spec]:
    """Specs of the inputs, with the values of those that `values` lists."""
    return [
        ABSENT
        if x is None
        else SequenceSpec(x.dtype)
        if isinstance(x, SequenceValue)
        else TensorSpec(x.dtype, x.shape, x if i in values else None)
        for i, x in enumerate(inputs)
    ]


def compile_op(
    op_type: str, inputs: Sequence[Any], *, known: Sequence[int] = (), **keywords: Any
) -> tuple[Operation, Compiled]:
    """The operation and its kernel, compiled for these inputs. `known`: further inputs with known values."""
    kernels.load_all()
    op = operation(op_type, inputs, **keywords)
    definition = lookup(op.domain, op.op_type, op.version)
    assert definition is not None, f"no kernel serves {op}"
    return op, definition.compile(op, specs_of(inputs, (*definition.values, *known)), np)


def run_op(
    op_type: str,
    inputs: Sequence[Any],
    *,
    opset: int,
    domain: str = "",
    n_outputs: int = 1,
    omit: Sequence[int] = (),
    known: Sequence[int] = (),
    **attributes: Any,
) -> list[Any]:
    """The operator's outputs (None for those in `omit`), from its kernel.

    The kernel gets read-only inputs, poisoned outputs and scratch with guard bytes behind them, and is called
    twice; each input it may overwrite is overwritten once.
    """
    op, compiled = compile_op(
        op_type,
        inputs,
        known=known,
        opset=opset,
        domain=domain,
        n_outputs=n_outputs,
        omit=omit,
        **attributes,
    )
    lent = [_read_only(x, i in compiled.contiguous) for i, x in enumerate(inputs)]
    before = [_bits(x) for x in lent]
    if compiled.run is not None:
        first, results = (list(compiled.run(lent)) for _ in range(2))
    else:
        _check_outputs(op, compiled)
        first, results = _call(compiled, lent)
        for pair in compiled.overwrites:
            _same(_call(compiled, lent, pair)[0], results)
        if compiled.view is not None:
            viewed = compiled.view(lent)
            if viewed is not None:
                _same([*viewed, *[None] * (len(results) - len(viewed))], results)
    _same(first, results)
    assert [_bits(x) for x in lent] == before, "an input was written"
    return results


def reference(
    op_type: str,
    inputs: Sequence[Any],
    *,
    opset: int,
    domain: str = "",
    n_outputs: int = 1,
    omit: Sequence[int] = (),
    use_ort: bool = True,
    **attributes: Any,
) -> list[Any]:
    """The operator's outputs from onnxruntime where it takes the case (and `use_ort`), else from onnx.reference."""
    model = node_model(
        op_type, inputs, opset=opset, domain=domain, n_outputs=n_outputs, omit=omit, **attributes
    )
    feeds = {f"i{k}": x for k, x in enumerate(inputs) if x is not None}
    names = [f"o{k}" for k in range(n_outputs) if k not in omit]
    found: list[Any] | None = None
    if use_ort:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            session = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            found = session.run(names, feeds)
        except Exception:  # onnxruntime raises a dozen types for "does not take this"
            found = None
    if found is None:
        with np.errstate(all="ignore"):
            found = list(ReferenceEvaluator(model).run(names, feeds))
    by_name = dict(zip(names, found, strict=True))
    return [by_name.get(f"o{k}") for k in range(n_outputs)]


def node_model(
    op_type: str,
    inputs: Sequence[Any],
    *,
    opset: int,
    domain: str = "",
    n_outputs: int = 1,
    omit: Sequence[int] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node with inputs i0, i1… and outputs o0, o1…"""
    node = helper.make_node(
        op_type,
        [f"i{k}" if x is not None else "" for k, x in enumerate(inputs)],
        ["" if k in omit else f"o{k}" for k in range(n_outputs)],
        name="node",
        domain=domain,
        **{
            k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
            for k, v in attributes.items()
        },
    )
    graph = helper.make_graph(
        [node],
        "one_node",
        [
            helper.make_tensor_value_info(f"i{k}", int(onnx_dtype(x.dtype)), list(x.shape))
            for k, x in enumerate(inputs)
            if x is not None
        ],
        [onnx.ValueInfoProto(name=f"o{k}") for k in range(n_outputs) if k not in omit],
    )
    opsets = [helper.make_opsetid("", opset if not domain else 21)]
    if domain:
        opsets.append(helper.make_opsetid(domain, opset))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def assert_close(
    actual: Sequence[Any], expected: Sequence[Any], *, rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    """Same dtypes and shapes; floats within tolerance (NaN equals NaN), everything else equal."""
    assert len(actual) == len(expected)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if e is None:
            assert a is None, f"output {i} is there"
            continue
        e = np.asarray(e)
        assert a.shape == e.shape, f"output {i}: {a.shape}, expected {e.shape}"
        if e.dtype.kind in "OU":
            assert a.tolist() == e.tolist(), f"output {i}"
            continue
        assert a.dtype == e.dtype, f"output {i}: {a.dtype}, expected {e.dtype}"
        if e.dtype in FLOATS:
            np.testing.assert_allclose(_wide(a), _wide(e), rtol=rtol, atol=atol, err_msg=f"output {i}")
        else:
            np.testing.assert_array_equal(_wide(a), _wide(e), err_msg=f"output {i}")


def check_op(
    op_type: str, inputs: Sequence[Any], *, rtol: float = 1e-5, atol: float = 1e-6, **keywords: Any
) -> Any:
    """`run_op` against `reference`; returns the kernel's outputs."""
    actual = run_op(op_type, inputs, **{k: v for k, v in keywords.items() if k != "use_ort"})
    keywords.pop("known", None)
    assert_close(actual, reference(op_type, inputs, **keywords), rtol=rtol, atol=atol)
    return actual


def _wide(array: Any) -> Any:
    """float64 of narrow floats and ml_dtypes, which NumPy's comparisons do not know."""
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def _read_only(x: Any, contiguous: bool) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    lent = x.copy(order="C") if contiguous and not x.flags.c_contiguous else x.view()
    lent.flags.writeable = False
    return lent


def _bits(x: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    return x.tolist() if x.dtype.kind == "O" else x.tobytes()


def _same(first: Sequence[Any], second: Sequence[Any]) -> None:
    assert [_bits(x) for x in first] == [_bits(x) for x in second], "two calls gave different bits"


def _buffer(nbytes: int) -> Any:
    """Poisoned bytes, 64-byte aligned, with GUARD bytes behind."""
    raw = np.full(nbytes + GUARD + 64, POISON, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes + GUARD]


def _check_outputs(op: Operation, compiled: Compiled) -> None:
    assert compiled.bind is not None
    assert len(compiled.outputs) == len(op.present_outputs), "outputs and present_outputs differ in number"
    for spec, present in zip(compiled.outputs, op.present_outputs, strict=True):
        assert (spec is not None) == present, "an omitted output has a spec, or the other way around"


def _call(
    compiled: Compiled, lent: Sequence[Any], overwrite: tuple[int, int] | None = None
) -> list[list[Any]]:
    """Results of two calls; of one, where output `overwrite[1]` is computed into input `overwrite[0]`."""
    assert compiled.bind is not None
    buffers: list[Any] = []
    outputs: list[Any] = []
    for spec in compiled.outputs:
        if not isinstance(spec, TensorSpec):
            outputs.append(None)
        elif spec.dtype.kind == "O":
            outputs.append(np.full(spec.shape, None, object))
        else:
            buffers.append(_buffer(spec.nbytes))
            outputs.append(buffers[-1][: spec.nbytes].view(spec.dtype).reshape(spec.shape))
    inputs = list(lent)
    if overwrite is not None:
        i, o = overwrite
        inputs[i] = outputs[o]
    workspace = _buffer(compiled.workspace_bytes) if compiled.workspace_bytes else None
    scratch = None if workspace is None else workspace[: compiled.workspace_bytes]
    call = compiled.bind(inputs, outputs, scratch)
    results = []
    for _ in range(2 if overwrite is None else 1):
        for buffer in (*buffers, *([] if workspace is None else [workspace])):
            buffer[...] = POISON
        if overwrite is not None:
            inputs[i][...] = lent[i]
        call()
        for buffer in (*buffers, *([] if workspace is None else [workspace])):
            assert (buffer[-GUARD:] == POISON).all(), "written behind the end"
        results.append([None if x is None else x.copy() for x in outputs])
    return results
