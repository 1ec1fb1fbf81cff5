"""The plan: which child runs which program, and which values cross between children; immutable, serialisable data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hetero.program.program import Port, Program
from hetero.providers.base import ProviderConfig
from hetero.types import ValueType

if TYPE_CHECKING:
    import onnx

CALLER = -1
"""Stands for the caller (the driver) where a child or a partition is expected."""


LOST = "it was lost while the model ran"
"""Why a node is no more on the provider that it was placed on."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a provider did not get a node."""

    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one node went and why. `path` names the enclosing bodies, outermost first ("if1.then_branch"); `stage` is
    the number of its pipeline stage, None where it is in none."""

    node_index: int
    node: str
    op: str
    provider: str
    reason: str
    rejected: tuple[Rejection, ...] = ()
    path: tuple[str, ...] = ()
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """The nodes of a pipeline stage that are on one child. Values go from a stage to those with larger numbers.

    `time_ps`: picoseconds that the nodes take, as measured or estimated. `weight_bytes`: of the distinct weights that
    they read.
    """

    number: int
    child: int
    time_ps: int
    weight_bytes: int


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
class Variant:
    """How steps of one shape class run: those in which every symbol of `when` has an extent from the least to the most
    given there (None: no bound). `plan`: over the same providers, and without variants of its own."""

    name: str
    when: tuple[tuple[str, int, int | None], ...]
    plan: Plan


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What `HeterogeneousExecutor` drives.

    `providers`: one child per entry that has a partition; child index = index here (a provider that got no node has
    no partition and no actor). `inputs` / `outputs`: the model's own, in its order (Port.slot is NO_SLOT). `weights`:
    per child, the initializers it holds. `placements`: one per node, bodies included. `stages`: by number
    and child, where nodes were staged. `variants`: other ways to run, the first whose shapes fit a step; all else is
    about the steps that fit none, but for `weights`, which count for all.
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
    stages: tuple[Stage, ...] = ()
    variants: tuple[Variant, ...] = ()
    _bytes: bytes | None = field(default=None, init=False, repr=False)

    @property
    def sections(self) -> tuple[Plan, ...]:
        """This plan by itself, then its variants', with partitions and parcels numbered through: what children
        prepare and the executor drives."""
        if not self.variants:
            return (self,)
        found: list[Plan] = []
        partitions = parcels = 0
        for plan in (replace(self, variants=()), *(v.plan for v in self.variants)):
            found.append(
                replace(
                    plan,
                    partitions=tuple(replace(p, id=p.id + partitions) for p in plan.partitions),
                    parcels=tuple(
                        replace(
                            p,
                            id=p.id + parcels,
                            producer=p.producer if p.producer == CALLER else p.producer + partitions,
                        )
                        for p in plan.parcels
                    ),
                    weights=self.weights,
                )
            )
            partitions += len(plan.partitions)
            parcels += len(plan.parcels)
        return tuple(found)

    @property
    def children(self) -> list[int]:
        """The children that run anything, ascending."""
        return sorted({p.child for plan in (self, *(v.plan for v in self.variants)) for p in plan.partitions})

    def to_bytes(self) -> bytes:
        """The plan as msgpack bytes, the same on every machine; made once.

        Raises: OptionError for provider options that are not plain data; PlanError for what has no wire form.
        """
        if self._bytes is None:
            from hetero.planner.codec import encode

            object.__setattr__(self, "_bytes", encode(self))
        assert self._bytes is not None
        return self._bytes

    @classmethod
    def from_bytes(cls, data: bytes, *, checked: bool = False) -> Plan:
        """The plan that `to_bytes` wrote, wherever the bytes come from; `checked`: from one who has checked it.

        Raises: PlanError for anything else.
        """
        from hetero.planner.codec import decode

        return decode(data, checked=checked)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of `to_bytes`: the plan's identity."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return self.to_bytes() == other.to_bytes() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan.from_bytes, (self.to_bytes(),)

    def summary(self) -> str:
        """Some lines: nodes and operations per provider, partitions, what moves between children."""
        from hetero.planner.explain import summary

        return summary(self)

    def explain(self, *, nodes: bool = False) -> str:
        """Why the plan is as it is: what is not on the preferred provider and why, partitions, transfers.

        With `nodes`, also one line per node, those inside bodies indented.
        """
        from hetero.planner.explain import explain

        return explain(self, nodes=nodes)

    def annotate(self, model: Any, *, name: str = "hetero") -> onnx.ModelProto:
        """A copy of `model`, which this plan is of, with the placement as an ONNX device configuration `name`.

        Planned with `stages="model"` over the same providers, the copy gives this placement again.
        Raises: PlanError for another model's plan, and for what annotations cannot say (see `annotate.annotate`).
        """
        from hetero.planner.annotate import annotate

        return annotate(self, model, name=name)

    def to_dot(self) -> str:
        """The plan as a Graphviz digraph: a box per partition, an edge per parcel and destination."""
        from hetero.planner.dot import to_dot

        return to_dot(self)
