"""Checking a plan: every reference in it holds, and every value is where it is read; linear."""

from __future__ import annotations

from collections.abc import Iterator

from hetero.errors import PlanError, ProgramError
from hetero.planner.plan import CALLER, Plan
from hetero.program.program import Program
from hetero.program.validate import validate
from hetero.shapes.expression import is_symbol
from hetero.types import TensorType


def check_plan(plan: Plan) -> None:
    """Check what an executor relies on.

    Holds afterwards: providers have distinct names, and one list of weights each; partitions and parcels are numbered
    in order; every program is valid and its initializers are held by its child; every value is made once, by the
    caller or one partition; what a partition reads was made before it, on its child or brought there by exactly one
    parcel; parcels bring nothing that is not read; every output that a partition makes goes to the caller; each node
    is in one partition, and its placement names that partition's provider; stages are in order, and whatever is in one
    is on its child; variants have distinct names, are sound plans of the same model and providers, and name symbols of
    its inputs.
    Raises: PlanError.
    """
    _check_providers(plan)
    for partition in plan.partitions:
        try:
            validate(partition.program, require_constants=frozenset(plan.weights[partition.child]))
        except ProgramError as error:
            raise PlanError(
                f"partition {partition.id}: {error.message}",
                op=error.op,
                node=error.node,
                operand=error.operand,
            ) from error
    maker = _makers(plan)
    arrives = _arrivals(plan, maker)
    _check_reads(plan, maker, arrives)
    _check_placements(plan)
    _check_variants(plan)


def constants_of(program: Program) -> Iterator[str]:
    """The initializers that the program or a body inside it reads."""
    for port in program.constants:
        yield port.name
    for instruction in program.instructions:
        for body in instruction.op.bodies().values():
            yield from constants_of(body)


def _check_providers(plan: Plan) -> None:
    names = [config.name for config in plan.providers]
    if len(set(names)) != len(names):
        raise PlanError("two providers of one name")
    if len(plan.weights) != len(names):
        raise PlanError(f"{len(plan.weights)} lists of weights for {len(names)} providers")
    for number, partition in enumerate(plan.partitions):
        if partition.id != number:
            raise PlanError(f"partition {number} says it is {partition.id}")
        if not 0 <= partition.child < len(names):
            raise PlanError(f"partition {number} is on child {partition.child} of {len(names)}")
        held = set(plan.weights[partition.child])
        missing = next((n for n in constants_of(partition.program) if n not in held), None)
        if missing is not None:
            raise PlanError(
                f"partition {number} reads a weight that its child does not hold", operand=missing
            )
    for number, parcel in enumerate(plan.parcels):
        if parcel.id != number:
            raise PlanError(f"parcel {number} says it is {parcel.id}")


def _makers(plan: Plan) -> dict[str, int]:
    maker: dict[str, int] = {}
    for port in plan.inputs:
        if port.name in maker:
            raise PlanError("two inputs of one name", operand=port.name)
        maker[port.name] = CALLER
    for partition in plan.partitions:
        for port in partition.program.outputs:
            if port.name in maker:
                raise PlanError(
                    f"partition {partition.id} makes a value that is there already", operand=port.name
                )
            maker[port.name] = partition.id
    return maker


def _arrivals(plan: Plan, maker: dict[str, int]) -> dict[tuple[str, int], bool]:
    """(value, destination) of every parcel, for marking off what is read."""
    arrives: dict[tuple[str, int], bool] = {}
    for parcel in plan.parcels:
        what = f"parcel {parcel.id}"
        if not CALLER <= parcel.producer < len(plan.partitions):
            raise PlanError(f"{what} comes from partition {parcel.producer}, which does not exist")
        home = CALLER if parcel.producer == CALLER else plan.partitions[parcel.producer].child
        if not parcel.values or not parcel.destinations:
            raise PlanError(f"{what} holds nothing or goes nowhere")
        if list(parcel.destinations) != sorted(set(parcel.destinations)):
            raise PlanError(f"{what}: destinations are not sorted or not distinct")
        for place in parcel.destinations:
            if not CALLER <= place < len(plan.providers) or place == home:
                raise PlanError(f"{what} cannot go to {place}")
            for value in parcel.values:
                if maker.get(value) != parcel.producer:
                    raise PlanError(f"{what} holds a value that its producer does not make", operand=value)
                if (value, place) in arrives:
                    raise PlanError(f"{what} brings a value to {place} a second time", operand=value)
                arrives[value, place] = False
    return arrives


def _check_reads(plan: Plan, maker: dict[str, int], arrives: dict[tuple[str, int], bool]) -> None:
    for partition in plan.partitions:
        for port in partition.program.inputs:
            source = maker.get(port.name)
            if source is None or source >= partition.id:
                raise PlanError(
                    f"partition {partition.id} reads what nothing before it makes", operand=port.name
                )
            if source != CALLER and plan.partitions[source].child == partition.child:
                continue
            if (port.name, partition.child) not in arrives:
                raise PlanError(
                    f"partition {partition.id} reads a value that no parcel brings", operand=port.name
                )
            arrives[port.name, partition.child] = True
    for port in plan.outputs:
        if maker.get(port.name, CALLER) != CALLER:
            if (port.name, CALLER) not in arrives:
                raise PlanError("an output is not brought to the caller", operand=port.name)
            arrives[port.name, CALLER] = True
    idle = next((value for (value, _), read in arrives.items() if not read), None)
    if idle is not None:
        raise PlanError("a parcel brings a value where nobody reads it", operand=idle)


def _check_placements(plan: Plan) -> None:
    known = {config.name for config in plan.providers}
    numbers = [(stage.number, stage.child) for stage in plan.stages]
    if numbers != sorted(set(numbers)):
        raise PlanError("stages are not in order, or one is there twice")
    homes = {(stage.number, plan.providers[stage.child].name) for stage in plan.stages}
    outer: dict[int, str] = {}
    for placement in plan.placements:
        if placement.provider not in known:
            raise PlanError(
                f"placed on {placement.provider}, which is no provider of the plan", node=placement.node
            )
        if placement.stage is not None and (placement.stage, placement.provider) not in homes:
            raise PlanError(
                f"in stage {placement.stage}, which is not on {placement.provider}", node=placement.node
            )
        if not placement.path:
            if placement.node_index in outer:
                raise PlanError("a node is placed twice", node=placement.node)
            outer[placement.node_index] = placement.provider
    for partition in plan.partitions:
        provider = plan.providers[partition.child].name
        for index in partition.node_indices:
            if outer.pop(index, None) != provider:
                raise PlanError(
                    f"partition {partition.id} has node {index}, which is not placed on {provider}"
                )
    if outer:
        raise PlanError(f"{len(outer)} placed nodes are in no partition")


def _check_variants(plan: Plan) -> None:
    names = [variant.name for variant in plan.variants]
    if len(set(names)) != len(names):
        raise PlanError(f"two variants of one name: {names}")
    ports = [(p.name, p.type) for p in (*plan.inputs, *plan.outputs)]
    known = symbols_of(plan) if plan.variants else {}
    for variant in plan.variants:
        own = variant.plan
        if own.variants:
            raise PlanError(f"variant {variant.name!r} has variants")
        if own.providers != plan.providers or own.model_digest != plan.model_digest:
            raise PlanError(f"variant {variant.name!r} is of another model, or over other providers")
        if [(p.name, p.type) for p in (*own.inputs, *own.outputs)] != ports:
            raise PlanError(f"variant {variant.name!r} has other inputs or outputs")
        for symbol, least, most in variant.when:
            if symbol not in known or (most is not None and most < least):
                raise PlanError(
                    f"variant {variant.name!r}: no input has an extent {symbol!r} from {least} to {most}"
                )
        check_plan(own)
        for child, held in enumerate(own.weights):
            if not set(held) <= set(plan.weights[child]):
                raise PlanError(f"variant {variant.name!r} has weights that child {child} does not hold")


def symbols_of(plan: Plan) -> dict[str, tuple[str, int]]:
    """The symbols that are extents of inputs, each with an input and the axis where it stands alone."""
    found: dict[str, tuple[str, int]] = {}
    for port in plan.inputs:
        if isinstance(port.type, TensorType):
            for axis, extent in enumerate(port.type.shape or ()):
                if isinstance(extent, str) and is_symbol(extent):
                    found.setdefault(extent, (port.name, axis))
    return found
