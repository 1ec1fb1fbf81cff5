"""The ONNX project's backend API (onnx.backend.base) over a HeterogeneousExecutor with inline children."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep

from hetero.errors import HeteroError, InputError, ModelError, OptionError, ProviderError
from hetero.executor import HeterogeneousExecutor, ModelLike, plan
from hetero.providers.registry import ProviderLike, cuda_device_count, is_kind
from hetero.types import MapValue, SequenceValue, onnx_dtype

_EXECUTOR_OPTIONS = frozenset({"providers", "children", "options", "strict", "transport", "ray_options"})
# What onnx's own test runner hands to prepare() along with its tolerances.
_IGNORED = frozenset({"rtol", "atol"})


class HeteroBackendRep(BackendRep):
    """A model that is ready to run. Close it, use it as a context manager, or drop it: its executor goes with it."""

    def __init__(self, executor: HeterogeneousExecutor) -> None:
        self.executor = executor
        self._names = tuple(port.name for port in executor.plan.inputs)
        self._close = weakref.finalize(self, executor.close)
        self._close.atexit = False  # then actors end with the process, and Ray may be gone already

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The model's outputs, in its order: ndarray, list (a sequence), dict (a map) or None (an optional
        that holds nothing).

        inputs: the values in the model's order of inputs (without those it gives a value itself), or by name.
        Raises: InputError, and what HeterogeneousExecutor.run raises.
        """
        if kwargs:
            raise OptionError(f"run takes no options, but got {sorted(kwargs)}")
        outputs = self.executor.run(self._feeds(inputs))
        return tuple(_plain(outputs[port.name]) for port in self.executor.plan.outputs)

    def _feeds(self, inputs: Any) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            return inputs
        if isinstance(inputs, np.ndarray) and len(self._names) == 1:
            return {self._names[0]: inputs}
        if isinstance(inputs, str | bytes) or not isinstance(inputs, Sequence):
            raise InputError(f"inputs must be a list or a dict of arrays, not {type(inputs).__name__}")
        if len(inputs) != len(self._names):
            raise InputError(
                f"the model takes {len(self._names)} inputs ({list(self._names)}), not {len(inputs)}"
            )
        return dict(zip(self._names, inputs, strict=True))

    def close(self) -> None:
        """Stop the executor. A second call does nothing."""
        self._close()

    def __enter__(self) -> HeteroBackendRep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HeteroBackend(Backend):
    """The backend, as a class; the module's functions of the same names are its methods.

    Devices: "CPU", "SIM", "SIM:1", "CUDA:0"… (any provider's name in capitals); what such a device has no kernel for
    runs on the CPU. The keywords `providers`, `children` (default "inline"), `options`, `strict`, `transport` and
    `ray_options` are those of HeterogeneousExecutor; `providers` takes the place of the device.
    """

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is such a device here; never raises."""
        kind, colon, index = device.lower().partition(":") if isinstance(device, str) else ("", "", "")
        if not is_kind(kind) or (colon and not (index.isascii() and index.isdecimal())):
            return False
        return kind != "cuda" or int(index or 0) < cuda_device_count()

    @classmethod
    def is_compatible(cls, model: ModelLike, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be planned on this device."""
        chosen = _executor_options(device, kwargs)
        try:
            plan(model, chosen["providers"], strict=chosen.get("strict", False))
        except HeteroError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelLike, device: str = "CPU", **kwargs: Any) -> HeteroBackendRep:
        """Plan the model and start its children; `model` is anything HeterogeneousExecutor takes.

        Raises: ProviderError for a device that is not there, OptionError for an unknown keyword, ModelError, PlanError.
        """
        return HeteroBackendRep(HeterogeneousExecutor(model, **_executor_options(device, kwargs)))

    @classmethod
    def run_model(cls, model: ModelLike, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare, run once, close."""
        with cls.prepare(model, device, **kwargs) as rep:
            return rep.run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, Sequence[int]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node once.

        inputs: a value per input of the node, in order (None for one that is left out), or values by name. A list is a
        sequence. outputs_info: (dtype, shape) of each output. `opset_version`: which opset of the node's domain the
        node is of, default the newest.
        Raises: InputError, and what prepare and run raise.
        """
        if not isinstance(node, onnx.NodeProto):
            raise ModelError(f"a node is an onnx.NodeProto, not {type(node).__name__}")
        version = kwargs.pop("opset_version", None)
        feeds = _node_feeds(node, inputs)
        rep = cls.prepare(_node_model(node, feeds, outputs_info, version), device, **kwargs)
        with rep:
            return rep.run(feeds)


def _executor_options(device: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(kwargs.keys() - _EXECUTOR_OPTIONS - _IGNORED)
    if unknown:
        raise OptionError(f"unknown keywords {unknown}; there are {sorted(_EXECUTOR_OPTIONS)}")
    chosen: dict[str, Any] = {"children": "inline"}
    chosen.update({k: v for k, v in kwargs.items() if k in _EXECUTOR_OPTIONS})
    if chosen.get("providers") is None:
        chosen["providers"] = _providers(device)
    return chosen


def _providers(device: str) -> list[ProviderLike]:
    if not isinstance(device, str):
        raise ProviderError(f'a device is a name such as "CPU" or "SIM:0", not {device!r}')
    name = device.lower()
    return [name] if name.partition(":")[0] == "cpu" else [name, "cpu"]


def _plain(value: Any) -> Any:
    if isinstance(value, SequenceValue):
        return [_plain(v) for v in value]
    return dict(value) if isinstance(value, MapValue) else value


def _node_feeds(node: onnx.NodeProto, inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if isinstance(inputs, str | bytes) or not isinstance(inputs, Sequence):
        raise InputError(f"inputs must be a list or a dict of arrays, not {type(inputs).__name__}")
    if len(inputs) != len(node.input):
        raise InputError(f"the node has {len(node.input)} inputs, not {len(inputs)}", op=node.op_type)
    return {name: value for name, value in zip(node.input, inputs, strict=True) if name}


def _node_model(
    node: onnx.NodeProto,
    feeds: Mapping[str, Any],
    outputs_info: Sequence[tuple[Any, Sequence[int]]] | None,
    version: int | None,
) -> onnx.ModelProto:
    """A model of this node alone, whose inputs are declared as what is fed."""
    inputs = [helper.make_value_info(name, _type_of(name, value)) for name, value in feeds.items()]
    names = [name for name in node.output if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    if outputs_info is not None:
        if len(outputs_info) != len(names):
            raise InputError(f"outputs_info has {len(outputs_info)} entries for {len(names)} outputs")
        outputs = [
            helper.make_value_info(name, _tensor_type(name, dtype, shape))
            for name, (dtype, shape) in zip(names, outputs_info, strict=True)
        ]
    if version is None:
        version = _newest(node.domain)
    graph = helper.make_graph([node], node.op_type or "node", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])


def _newest(domain: str) -> int:
    known = [s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain]
    return onnx.defs.onnx_opset_version() if domain == "" else max(known, default=1)


def _type_of(name: str, value: Any) -> onnx.TypeProto:
    if value is None:
        raise InputError(
            f"input {name!r} of a single node cannot be None: its type is not known", operand=name
        )
    if isinstance(value, list | tuple | SequenceValue):
        if not value:
            raise InputError(
                f"input {name!r} of a single node cannot be an empty sequence: its type is not known",
                operand=name,
            )
        element = _type_of(name, value[0])
        for other in list(value)[1:]:
            if _type_of(name, other) != element:  # elements may differ in shape
                element.tensor_type.ClearField("shape")
        return helper.make_sequence_type_proto(element)
    if isinstance(value, Mapping):
        return _map_type(name, value)
    array = np.asarray(value)
    return _tensor_type(name, array.dtype, array.shape)


def _map_type(name: str, value: Mapping[Any, Any]) -> onnx.TypeProto:
    """Of a map that holds something: int64 or string keys; int64, float or string values (those of a MapValue are of
    its dtype)."""
    if not value:
        raise InputError(
            f"input {name!r} of a single node cannot be an empty map: its type is not known", operand=name
        )
    dtype = value.value_dtype if isinstance(value, MapValue) else np.asarray(list(value.values())).dtype
    if not isinstance(value, MapValue) and dtype.kind == "f":
        dtype = np.dtype(np.float32)
    key = onnx.TensorProto.STRING if isinstance(next(iter(value)), str) else onnx.TensorProto.INT64
    return helper.make_map_type_proto(key, _tensor_type(name, dtype, ()))


def _tensor_type(name: str, dtype: Any, shape: Sequence[int]) -> onnx.TypeProto:
    try:
        return helper.make_tensor_type_proto(int(onnx_dtype(dtype)), list(shape))
    except TypeError as error:
        raise InputError(f"{name!r}: {error}", operand=name) from error


is_compatible = HeteroBackend.is_compatible
prepare = HeteroBackend.prepare
run_model = HeteroBackend.run_model
run_node = HeteroBackend.run_node
supports_device = HeteroBackend.supports_device
