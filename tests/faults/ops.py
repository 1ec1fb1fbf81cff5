"""Operators that stop, or take their process with them; importing this module registers them, in children too."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

import hetero
from actors import chaos
from hetero.extensions import ExtensionContext
from hetero.program.operation import Operation
from hetero.types import Spec, TensorSpec

DOMAIN = "tests.faults"
ROOM_BYTES = 1 << 30
KEEP = "keep"


@hetero.register_extension
class Stop(hetero.Extension):
    """y = x, after the gate "in Stop", if there is one."""

    domain, name = DOMAIN, "Stop"
    kinds = ("cpu", "sim", "cuda")
    in_session = in_capture = True

    def outputs(self, op: Operation, inputs: Sequence[Spec]) -> Sequence[TensorSpec]:
        (x,) = inputs
        assert isinstance(x, TensorSpec)
        return [x]

    def run(self, state: Any, inputs: Sequence[Any], outputs: Any, context: ExtensionContext) -> None:
        chaos.reach("in Stop")
        context.xp.copyto(outputs[0], inputs[0])


@hetero.register_extension
class Exit(hetero.Extension):
    """y = x; where it holds a NaN, the process ends in a C call, with exit code 7."""

    domain, name = DOMAIN, "Exit"
    kinds = ("cpu", "sim", "cuda")

    def outputs(self, op: Operation, inputs: Sequence[Spec]) -> Sequence[TensorSpec]:
        (x,) = inputs
        assert isinstance(x, TensorSpec)
        return [x]

    def run(self, state: Any, inputs: Sequence[Any], outputs: Any, context: ExtensionContext) -> None:
        if bool((inputs[0] != inputs[0]).any()):
            ctypes.CDLL(None)._exit(7)
        context.xp.copyto(outputs[0], inputs[0])


@hetero.register_extension
class Keep(hetero.Extension):
    """y = x, after a C call that keeps the interpreter: where the pipe `keep` is among the gates, until it is written
    to."""

    domain, name = DOMAIN, "Keep"
    kinds = ("cpu",)

    def outputs(self, op: Operation, inputs: Sequence[Spec]) -> Sequence[TensorSpec]:
        (x,) = inputs
        assert isinstance(x, TensorSpec)
        return [x]

    def run(self, state: Any, inputs: Sequence[Any], outputs: Any, context: ExtensionContext) -> None:
        if chaos._joined is not None and (pipe := chaos._joined / KEEP).exists():
            c = ctypes.PyDLL(None)
            end = c.open(bytes(pipe), os.O_RDONLY)
            c.read(end, ctypes.create_string_buffer(1), 1)
            c.close(end)
        context.xp.copyto(outputs[0], inputs[0])


@hetero.register_extension
class Limit(hetero.Extension):
    """y = x; an actor that is prepared for it can have little more memory from then on than it has."""

    domain, name = DOMAIN, "Limit"
    kinds = ("cpu",)
    in_session = True

    def prepare(self, op: Operation, context: ExtensionContext) -> None:
        if ray.get_runtime_context().get_actor_id() is None:
            return
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def outputs(self, op: Operation, inputs: Sequence[Spec]) -> Sequence[TensorSpec]:
        (x,) = inputs
        assert isinstance(x, TensorSpec)
        return [x]

    def run(self, state: Any, inputs: Sequence[Any], outputs: Any, context: ExtensionContext) -> None:
        context.xp.copyto(outputs[0], inputs[0])
