"""The last resort: any operator of onnx.reference, its results put right, its failures made ours."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from hetero.errors import KernelError, UnsupportedError
from hetero.kernels.reference import as_tensor, node_proto, reference_compile, reference_supports
from hetero.program.operation import Operation
from hetero.program.program import Program
from hetero.types import DataType, OptionalType, SequenceType, SequenceValue, TensorType, numpy_dtype
from tests.kernels.harness import operation, specs_of


def run(op_type: str, inputs: list[Any], **keywords: Any) -> list[Any]:
    op = operation(op_type, inputs, **keywords)
    assert reference_supports(op) is None
    compiled = reference_compile(op, specs_of(inputs))
    assert compiled.run is not None
    assert compiled.capture == "runs through onnx.reference"
    return list(compiled.run(inputs))


def test_a_plain_operator_gives_fresh_arrays() -> None:
    x = np.array([-1, 2], np.float32)
    (out,) = run("Abs", [x], opset=13)
    assert (out.tolist(), out.dtype) == ([1, 2], np.float32)
    (out,) = run("Identity", [x], opset=13)
    assert not np.shares_memory(out, x)


def test_read_only_and_strided_inputs_stay_as_they_are() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, :, ::2]
    x.flags.writeable = False
    (out,) = run("Softmax", [x], opset=13)
    assert np.allclose(out.sum(-1), 1)
    assert x[1, 2, 1] == 22


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_narrow_floats_keep_their_dtype(dtype: Any) -> None:
    x = np.array([[1, 2], [3, 4]]).astype(dtype)
    (out,) = run("Add", [x, x], opset=14)
    assert (out.dtype, out.astype(np.float32).tolist()) == (dtype, [[2, 4], [6, 8]])
    (out,) = run("ReduceMean", [x], opset=18)
    assert out.dtype == dtype


@pytest.mark.parametrize("to", [DataType.FLOAT8E4M3FN, DataType.INT4, DataType.BFLOAT16, DataType.UINT4])
def test_casts_reach_the_narrowest_dtypes(to: DataType) -> None:
    (out,) = run("Cast", [np.array([1, 2], np.float32)], opset=21, to=int(to))
    assert out.dtype == numpy_dtype(to)
    assert out.astype(np.float32).tolist() == [1, 2]


def test_scalars_come_back_as_arrays() -> None:
    (out,) = run("Size", [np.zeros((2, 3))], opset=13)
    assert isinstance(out, np.ndarray)
    assert (out.shape, out.dtype) == ((), np.int64)


def test_strings_come_back_as_objects() -> None:
    words = np.array(["a.b", "c"], object)
    (out,) = run("StringConcat", [words, words], opset=20)
    assert (out.dtype, out.tolist()) == (np.dtype(object), ["a.ba.b", "cc"])
    split, counts = run("StringSplit", [words], opset=20, n_outputs=2, delimiter=".")
    assert (split.dtype, split.tolist()) == (np.dtype(object), [["a", "b"], ["c", ""]])
    assert counts.tolist() == [2, 1]


def test_sequences_go_in_and_come_out() -> None:
    sequence = SequenceValue([np.zeros(2, np.float32), np.ones(3, np.float32)])
    (longer,) = run("SequenceInsert", [sequence, np.ones(1, np.float32)], opset=11)
    assert isinstance(longer, SequenceValue)
    assert [len(e) for e in longer] == [2, 3, 1]
    (empty,) = run("SequenceEmpty", [], opset=11, dtype=7)
    assert (len(empty), empty.dtype) == (0, np.int64)


def test_machine_learning_operators_are_served() -> None:
    x = np.array([["a", "b"]], object)
    (out,) = run(
        "LabelEncoder",
        [x],
        opset=2,
        domain="ai.onnx.ml",
        keys_strings=["a", "b"],
        values_int64s=[3, 4],
    )
    assert (out.tolist(), out.dtype) == ([[3, 4]], np.int64)
    (out,) = run(
        "Binarizer", [np.array([[0.2, 0.8]], np.float32)], opset=1, domain="ai.onnx.ml", threshold=0.5
    )
    assert (out.tolist(), out.dtype) == ([[0, 1]], np.float32)


def test_training_operators_are_served() -> None:
    inputs = [
        np.array(0.1, np.float32),
        np.array(0),
        *(np.array([v], np.float32) for v in (1.0, 0.5, 0.0)),
    ]
    weights, velocity = run(
        "Momentum",
        inputs,
        opset=1,
        domain="ai.onnx.preview.training",
        n_outputs=2,
        alpha=0.9,
        beta=0.1,
        mode="standard",
        norm_coefficient=0.0,
    )
    assert np.allclose(weights, 0.95)
    assert np.allclose(velocity, 0.5)


def test_a_function_whose_body_depends_on_types_is_served() -> None:
    x = np.array([[1.0, 2.0, 3.0]], np.float32)
    (out,) = run("SoftmaxCrossEntropyLoss", [x, np.array([2])], opset=13)
    assert np.allclose(out, -np.log(np.exp(3) / np.exp([1, 2, 3]).sum()))


def test_omitted_operands_stay_omitted() -> None:
    x = np.array([-5, 0, 5], np.float32)
    (out,) = run("Clip", [x, None, np.array(2, np.float32)], opset=13)
    assert out.tolist() == [-5, 0, 2]
    values, indices = run("TopK", [x, np.array([1])], opset=11, n_outputs=2, omit=(0,))
    assert values is None
    assert indices.tolist() == [2]


def test_warnings_of_the_library_stay_inside() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (out,) = run("Div", [np.array([1.0, 0.0]), np.array([0.0, 0.0])], opset=14)
    assert np.isinf(out[0])
    assert np.isnan(out[1])


def test_failures_are_kernel_errors_with_their_cause() -> None:
    with pytest.raises(KernelError, match=r"onnx\.reference failed: ") as caught:
        run("MatMul", [np.zeros((2, 3)), np.zeros((2, 3))], opset=13)
    assert isinstance(caught.value.__cause__, TypeError)
    assert (caught.value.op, caught.value.node) == ("MatMul", "node")


def test_what_it_cannot_run_is_declined_with_a_reason() -> None:
    unknown = Operation("com.example", "Nothing", 1)
    assert "com.example" in (reference_supports(unknown) or "")
    with pytest.raises(UnsupportedError, match="does not run it"):
        reference_compile(unknown, [])
    body = Program("body", (), (), (), (), 0)
    with_body = Operation("", "If", 16, {"then_branch": body, "else_branch": body}, (True,))
    assert "bodies" in (reference_supports(with_body) or "")
    odd = Operation("", "Abs", 13, {"odd": object()}, (True,))
    assert "no attribute" in (reference_supports(odd) or "")


def test_attributes_become_the_protos_their_schema_declares() -> None:
    float_tensor = TensorType(DataType.FLOAT, (2, "n"))
    op = Operation(
        "com.example",
        "Anything",
        1,
        {
            "i": 1,
            "f": 0.5,
            "s": "text",
            "ints": (1, 2),
            "floats": (0.5,),
            "strings": ("a", "b"),
            "tensor": np.array([1, 2], np.int16),
            "type": OptionalType(SequenceType(float_tensor)),
        },
        (True, False),
        (False, True),
    )
    node = node_proto(op)
    kinds = {a.name: onnx.AttributeProto.AttributeType.Name(a.type) for a in node.attribute}
    assert kinds == {
        "i": "INT",
        "f": "FLOAT",
        "s": "STRING",
        "ints": "INTS",
        "floats": "FLOATS",
        "strings": "STRINGS",
        "tensor": "TENSOR",
        "type": "TYPE_PROTO",
    }
    element = node.attribute[-1].tp.optional_type.elem_type.sequence_type.elem_type.tensor_type
    assert [d.dim_param or d.dim_value for d in element.shape.dim] == [2, "n"]
    assert (list(node.input), list(node.output)) == (["i0", ""], ["", "o1"])
    assert node_proto(Operation("", "LeakyRelu", 16, {"alpha": 1}, (True,))).attribute[0].f == 1


def test_coercion_makes_arrays_of_whatever_comes() -> None:
    assert as_tensor(3, np.dtype(np.int32)).dtype == np.int32
    assert as_tensor([b"a", "b"], None).tolist() == ["a", "b"]
    assert as_tensor(np.array("x"), None).shape == ()
    assert as_tensor(np.float64(2), np.dtype(np.float16)).dtype == np.float16
