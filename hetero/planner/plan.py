"""The plan: which child runs which program, and which values cross between children; immutable, serialisable data."""

from __future__ import annotations

from dataclasses import dataclass

from hetero.program.program import Port, Program
from hetero.providers.base import ProviderConfig
from hetero.types import ValueType

CALLER = -1
"""Stands for the caller (the driver) where a child or a partition is expected."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a provider did not get a node."""

    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one node went and why. `path` names the enclosing bodies, outermost first ("if1.then_branch")."""

    node_index: int
    node: str
    op: str
    provider: str
    reason: str
    rejected: tuple[Rejection, ...] = ()
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A convex set of nodes on one child. `id` is its index in Plan.partitions, which is a topological order."""

    id: int
    child: int
    program: Program

    @property
    def node_indices(self) -> tuple[int, ...]:
        """Indices of its nodes in the normalised graph, in execution order."""
        return tuple(i.node_index for i in self.program.instructions)


@dataclass(frozen=True, slots=True)
class Parcel:
    """Values that leave one place together for the same destinations, as one object.

    `producer`: partition id, or CALLER for graph inputs. `destinations`: child indices and, for graph outputs, CALLER;
    sorted; never the producer's own child (what stays on a child never leaves its table of resident values).
    """

    id: int
    producer: int
    values: tuple[str, ...]
    destinations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One value moved to one destination; `nbytes` is None while an extent is symbolic."""

    value: str
    source: int
    destination: int
    type: ValueType | None
    nbytes: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What `HeterogeneousExecutor` drives.

    `providers`: one child per entry that has a partition; child index = index here (a provider that got no node has
    no partition and no actor). `inputs` / `outputs`: the model's own, in its order (Port.slot is NO_SLOT). `weights`:
    per child, the initializers it holds. `placements`: one per node, bodies included.
    """

    model: str
    model_digest: str
    providers: tuple[ProviderConfig, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    partitions: tuple[Partition, ...]
    parcels: tuple[Parcel, ...]
    transfers: tuple[Transfer, ...]
    weights: tuple[tuple[str, ...], ...]
    placements: tuple[Placement, ...]
