"""The one tree of exceptions: which phase failed, on which op, node and operand, and why."""

from __future__ import annotations

from typing import Any


class HeteroError(Exception):
    """Base of everything this package raises on purpose.

    Attributes: phase (load, plan, prepare, run, capture, replay, transport), op ("domain::Op"), node (name),
    operand (value or attribute name), device (provider instance), step. None where it does not apply.
    Picklable with all attributes, so that a child's error reaches the caller whole.
    """

    phase: str = "run"

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        node: str | None = None,
        operand: str | None = None,
        device: str | None = None,
        step: int | None = None,
        phase: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.op = op
        self.node = node
        self.operand = operand
        self.device = device
        self.step = step
        if phase is not None:
            self.phase = phase

    def at(self, **where: Any) -> HeteroError:
        """Fill in the attributes that are still None (a lower layer knows less than the one above it)."""
        for name, value in where.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def __str__(self) -> str:
        where = ", ".join(
            f"{label} {value}"
            for label, value in (
                ("node", repr(self.node) if self.node else None),
                ("op", self.op),
                ("operand", repr(self.operand) if self.operand else None),
                ("on", self.device),
                ("step", self.step),
            )
            if value is not None
        )
        return f"{self.message} [{where}]" if where else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, dict(self.__dict__))


def _rebuild(cls: type[HeteroError], message: str, state: dict[str, Any]) -> HeteroError:
    error = cls(message)  # not __new__: that of MemoryError refuses subclasses
    error.__dict__.update(state)
    return error


class OptionError(HeteroError, ValueError):
    """A keyword, option or environment override that cannot be meant."""

    phase = "plan"


class ModelError(HeteroError):
    """The model file or object is damaged, untrusted in a way we refuse, or not ONNX."""

    phase = "load"


class PlanError(HeteroError):
    """The graph cannot be split over the given providers; or plan bytes are damaged."""

    phase = "plan"


class UnsupportedNodeError(PlanError):
    """No provider supports a node. The message lists every provider's reason."""


class ProviderError(HeteroError, ValueError):
    """Unknown provider, two of one name, a device that is not there, or a provider that broke its contract."""

    phase = "plan"


class ProgramError(HeteroError):
    """A program that breaks an invariant of its form (names the instruction and the slot)."""

    phase = "prepare"


class UnsupportedError(HeteroError):
    """A kernel declines these dtypes, shapes or attributes; its message is the reason shown in reports."""

    phase = "prepare"


class InputError(HeteroError, ValueError):
    """A feed that is missing, unknown, or of the wrong type, rank or extent."""


class GuardError(HeteroError):
    """Shapes that contradict each other: names the symbol, both values and where they came from."""


class KernelError(HeteroError):
    """A kernel failed on its operands (index out of range, shape mismatch, overflow…)."""


class StateError(HeteroError):
    """A value bound as state does not fit its buffer, or the executor has no such state."""


class MemoryLimitError(HeteroError, MemoryError):
    """Memory ran out: the machine's, a provider's limit, or the bound on one value's declared size."""


class DeviceError(HeteroError):
    """A device was used against its rules, or failed (simulated or real)."""


class ArtifactError(HeteroError):
    """A provider-owned artifact is not ready, is gone, or belongs to another executor, generation or epoch."""

    phase = "prepare"


class CaptureError(HeteroError):
    """Recording broke a capture rule; the step is answered eagerly."""

    phase = "capture"


class TransportError(HeteroError):
    """A value could not cross between children."""

    phase = "transport"


class ChildDiedError(TransportError):
    """A child executor's process is gone. Names the device and, where known, how it went."""


class StepTimeoutError(TransportError, TimeoutError):
    """A step passed its deadline."""


class ClosedError(HeteroError, RuntimeError):
    """The executor was closed before or while this was asked of it."""
