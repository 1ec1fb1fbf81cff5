"""The weights of one child on its device: uploaded at their first use; under a byte budget, some only for each use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hetero.errors import HeteroError
from hetero.kernels.base import Call
from hetero.mapped import let_go
from hetero.options import RuntimeOptions
from hetero.program.program import Dispatch
from hetero.providers.base import Buffer, Provider
from hetero.runtime.artifacts import Artifact, Artifacts
from hetero.runtime.residency import Residency, plan_residency
from hetero.runtime.weight_uses import Place, WeightUses
from hetero.types import Array, HostArray, TensorSpec


@dataclass(slots=True, eq=False)
class _Resident:
    """A weight that stays. The host array is held so that nobody else gets its id."""

    value: HostArray
    array: Array
    artifact: Artifact


@dataclass(slots=True, eq=False)
class _Staging:
    """Device memory that paged weights take turns in; `holder` is the one whose bytes are there."""

    nbytes: int
    buffer: Buffer | None = None
    holder: _Paged | None = None


@dataclass(slots=True, eq=False)
class _Paged:
    """A weight that is copied into its staging buffer when it is needed and not there."""

    name: str
    value: HostArray
    staging: _Staging
    weights: DeviceWeights
    array: Array | None = None

    def fetch(self) -> None:
        """Have the bytes in place before whatever is enqueued from here on."""
        if self.staging.holder is not self:
            self.weights.refill(self)


class DeviceWeights:
    """Device copies of host constants, one per host array, whatever program or section asks.

    Constants that stay are uploaded when something is first bound to them. Paged ones (see `residency`) have an address
    of their own too, in a staging buffer: what is bound to it must `fetch` before each use. A paged weight's array is
    not marked constant, so kernels keep nothing that follows from it.
    """

    def __init__(self, provider: Provider, options: RuntimeOptions, artifacts: Artifacts) -> None:
        self._provider = provider
        self._budget_bytes = options.weight_budget_bytes
        self._prefetch_nodes = options.prefetch_nodes
        self._artifacts = artifacts
        self._resident: dict[int, _Resident] = {}
        self._paged: dict[int, _Paged] = {}
        self._staging: tuple[_Staging, ...] = ()
        self._ahead: dict[tuple[int, int], list[_Paged]] = {}
        self._names: dict[int, str] = {}
        self._residency: Residency | None = None
        self._values: Mapping[str, HostArray] = {}
        self._bytes = self._peak_bytes = 0
        self._uploads = self._upload_bytes = self._refills = self._refill_bytes = self._evictions = 0

    # -- planning ------------------------------------------------------------------------------------------------
    def plan(self, uses: WeightUses) -> None:
        """Decide what stays under the budget. Nothing is uploaded yet.

        Raises: MemoryLimitError naming the weight for which the budget is too small.
        """
        sizes = {name: value.nbytes for name, value in uses.values.items()}
        try:
            plan = plan_residency(
                uses.steps, sizes, uses.pinned, self._budget_bytes, spare=self._prefetch_nodes > 0
            )
        except HeteroError as error:
            raise error.at(device=self._provider.name) from None
        self._residency = plan
        self._values = uses.values  # which keeps the arrays, and so their ids
        self._names = {id(value): name for name, value in uses.values.items()}
        self._staging = tuple(_Staging(n) for n in plan.buffers)
        self._paged = {
            id(uses.values[name]): _Paged(name, uses.values[name], self._staging[k], self)
            for name, k in plan.placed.items()
        }
        if self._prefetch_nodes:
            self._look_ahead(uses, plan)

    def _look_ahead(self, uses: WeightUses, plan: Residency) -> None:
        """For each read of a paged weight, the instruction at which to fetch it: as early as its buffer is free, and
        after what that instruction needs itself."""
        free_from: dict[tuple[int, int], int] = {}
        barrier: dict[int, int] = {}
        own: dict[tuple[int, int], list[_Paged]] = {}
        for step, (runner, at) in zip(uses.steps, uses.places, strict=True):
            program = id(runner)
            for name in step:
                k = plan.placed.get(name)
                if k is None:
                    continue
                first = max(
                    at - self._prefetch_nodes, free_from.get((program, k), 0), barrier.get(program, 0), 0
                )
                paged = self._paged[id(uses.values[name])]
                own.setdefault((program, at), []).append(paged)
                if first < at:
                    self._ahead.setdefault((program, first), own.get((program, first), [])[:]).append(paged)
                free_from[program, k] = at + 1
            if runner.program.instructions[at].dispatch is Dispatch.CONTROL:  # its bodies use the buffers
                barrier[program] = at + 1

    # -- use -----------------------------------------------------------------------------------------------------
    def resident(self, value: HostArray) -> Array:
        """The device array of a constant that stays; uploads it the first time."""
        found = self._resident.get(id(value))
        if found is None:
            name = self._names.get(id(value), str(TensorSpec(value.dtype, value.shape)))
            artifact = self._artifacts.begin("weight", name)
            try:
                array = self._provider.upload(value)
            except BaseException as error:
                self._artifacts.fail(artifact, artifact.identity, str(error))
                self._artifacts.drop(artifact)
                if isinstance(error, HeteroError):
                    error.at(operand=name)
                raise
            self._artifacts.complete(artifact, artifact.identity)
            let_go(value)
            found = self._resident[id(value)] = _Resident(value, array, artifact)
            self._uploads += 1
            self._upload_bytes += value.nbytes
            self._hold(value.nbytes)
        return found.array

    def is_here(self, value: HostArray) -> bool:
        """Whether binding to the constant uploads nothing."""
        return id(value) in self._resident or id(value) in self._paged

    def is_paged(self, value: HostArray | None) -> bool:
        """Whether the constant's address is shared with others, so that nothing may be a view of it."""
        return value is not None and id(value) in self._paged

    def place(self, value: HostArray) -> tuple[Array, Call | None]:
        """The device array of a constant, for good; and, of a paged one, what to call before each use."""
        paged = self._paged.get(id(value))
        if paged is None:
            return self.resident(value), None
        if paged.array is None:
            staging = paged.staging
            if staging.buffer is None:
                staging.buffer = self._provider.take(staging.nbytes)
                self._hold(staging.nbytes)
            paged.array = self._provider.array(staging.buffer, TensorSpec(value.dtype, value.shape))
        return paged.array, paged.fetch

    def ahead(self, place: Place) -> list[Call]:
        """What to call before instruction `place`, so that weights of later ones are under way."""
        found = self._ahead.get((id(place[0]), place[1]), ())
        calls: list[Call] = []
        for paged in found:
            self.place(paged.value)
            calls.append(paged.fetch)
        return calls

    def refill(self, paged: _Paged) -> None:
        """Copy a paged weight into its buffer, in stream order."""
        staging = paged.staging
        self._evictions += staging.holder is not None
        staging.holder = None  # should the copy fail, nobody's bytes are there
        try:
            self._provider.upload_into(paged.value, paged.array)
        except HeteroError as error:
            error.at(operand=paged.name)
            raise
        staging.holder = paged
        self._refills += 1
        self._refill_bytes += paged.value.nbytes

    def _hold(self, nbytes: int) -> None:
        self._bytes += nbytes
        self._peak_bytes = max(self._peak_bytes, self._bytes)

    # -- the rest ------------------------------------------------------------------------------------------------
    def statistics(self) -> dict[str, Any]:
        """`uploads` of weights that stay and `refills` of paged ones, with their bytes; `evictions`: refills that took
        another's place; `resident_bytes` held for weights, staging included, and their peak; the plan's verdict."""
        plan = self._residency
        return {
            "uploads": self._uploads,
            "upload_bytes": self._upload_bytes,
            "refills": self._refills,
            "refill_bytes": self._refill_bytes,
            "evictions": self._evictions,
            "resident_bytes": self._bytes,
            "peak_resident_bytes": self._peak_bytes,
            "budget_bytes": self._budget_bytes,
            "paged": sorted(p.name for p in self._paged.values()),
            "staging_bytes": sum(s.nbytes for s in self._staging),
            "step_copies": 0 if plan is None else plan.step_copies,
            "step_bytes": 0 if plan is None else plan.step_bytes,
        }

    def close(self) -> None:
        """Give the memory back; nothing that was bound to it may be called any more. A second call does nothing."""
        for resident in self._resident.values():
            self._artifacts.drop(resident.artifact)
        self._resident.clear()
        self._paged.clear()
        self._ahead.clear()
        for staging in self._staging:
            if staging.buffer is not None:
                self._provider.give(staging.buffer)
        self._staging = ()
        self._bytes = 0
