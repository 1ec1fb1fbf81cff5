"""Why a call stays outside captured segments; the values are stable, for programs that read statistics."""

from __future__ import annotations

from enum import StrEnum


class SeamReason(StrEnum):
    """Why something runs between captured segments, in every step."""

    HOST_CONTROL_FLOW = "host-control-flow"
    """If, Loop, Scan or SequenceMap: which bodies run, and how often, is decided in each step. (The bodies' own
    instructions are captured, per body.)"""
    SEQUENCE = "sequence"
    """Handles to elements are moved, on the host."""
    DATA_DEPENDENT_SHAPE = "data-dependent-shape"
    """The data decides the shape of a result."""
    UNKNOWN_OPERAND = "unknown-operand"
    """The value of an operand decides shapes, and is known in the step only."""
    CALLERS_MEMORY = "callers-memory"
    """It reads memory that is the caller's, or makes a result that is, so its addresses differ in each step."""
    KERNEL_OPTS_OUT = "kernel-opts-out"
    """The kernel says that it must not be recorded."""
    GROWING_SYMBOL = "growing-symbol"
    """An operand or a result grows from step to step."""
    WEIGHT_PAGED = "weight-paged"
    """A weight that the budget leaves no room for is copied to its device for the calls that follow."""
    RECORDING_FAILED = "recording-failed"
    """An operator of this type broke a recording, and is kept out of them since."""
    TOO_SHORT = "too-short"
    """So few calls in a row that launching them as a graph would cost more than it saves."""
