"""What the operators between inputs and outputs demand of input extents, checked before anything runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from hetero.errors import GuardError
from hetero.program.assemble import LoweredNode
from hetero.program.program import Port
from hetero.shapes.expression import is_symbol, to_extent
from hetero.shapes.expression import symbols as symbols_of
from hetero.shapes.extent import Extent, constant, evaluate, symbol
from hetero.shapes.facts import Demand, Facts
from hetero.types import Dim, HostArray, Shape, TensorType

_REMEMBERED = 256
"""Combinations of extents that were found good."""
Sources = Mapping[str, tuple[str, int]]
"""Symbol -> the input and the axis that it is the extent of."""


def input_symbols(inputs: Sequence[Port]) -> tuple[dict[str, tuple[str, int]], dict[str, tuple[Extent, ...]]]:
    """Where each symbol comes from, and each input's extents; an extent that is declared as no plain symbol or number
    gets one of its own ("x[0]")."""
    sources: dict[str, tuple[str, int]] = {}
    shapes: dict[str, tuple[Extent, ...]] = {}
    for port in inputs:
        if not isinstance(port.type, TensorType) or port.type.shape is None:
            continue
        extents = []
        for axis, dim in enumerate(port.type.shape):
            name = dim if isinstance(dim, str) and is_symbol(dim) else f"{port.name}[{axis}]"
            if not isinstance(dim, int):
                sources.setdefault(name, (port.name, axis))
            extents.append(constant(dim) if isinstance(dim, int) else symbol(name))
        shapes[port.name] = tuple(extents)
    return sources, shapes


class Obligations:
    """The demands of one model, over its input extents. A check of extents seen before is one look-up."""

    def __init__(self, demands: Sequence[Demand], sources: Sources) -> None:
        used = {s for d in demands for s in (*d.left.symbols(), *d.right.symbols())}
        self.demands = tuple(d for d in demands if not _holds_always(d))
        self._sources = {s: sources[s] for s in sorted(used)}
        self._good: OrderedDict[tuple[int, ...], None] = OrderedDict()

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """`shapes`: input name -> extents, which agree with the declared ones.

        Raises: GuardError naming the node, both expressions with their values, and the inputs and axes that these come
        from. Nothing is demanded that depends on the data, or on an input that is not there.
        """
        if not self.demands:
            return
        try:
            key = tuple([shapes[name][axis] for name, axis in self._sources.values()])
        except KeyError:  # an optional input that holds nothing
            return
        if key in self._good:
            return
        env = dict(zip(self._sources, key, strict=True))
        for demand in self.demands:
            left, right = evaluate(demand.left, env), evaluate(demand.right, env)
            if left is not None and right is not None and left >= 0 and not KINDS[demand.kind](left, right):
                raise self._error(demand, left, right, env)
        self._good[key] = None
        if len(self._good) > _REMEMBERED:
            self._good.popitem(last=False)

    def _error(self, demand: Demand, left: int, right: int, env: Mapping[str, int]) -> GuardError:
        places = []
        for s in sorted(demand.left.symbols() | demand.right.symbols()):
            name, axis = self._sources[s]
            places.append(f"{s} is {env[s]} by input {name!r} axis {axis}")
        return GuardError(
            f"{demand.why}: {demand.left_is} is {_text(demand.left, left)}, {demand.right_is} is "
            f"{_text(demand.right, right)}{'; ' if places else ''}{', '.join(places)}",
            op=demand.op or None,
            node=demand.node or None,
        )


def _holds_always(demand: Demand) -> bool:
    left, right = demand.left.constant, demand.right.constant
    return left is not None and right is not None and KINDS[demand.kind](left, right)


def _text(extent: Extent, value: int) -> str:
    return str(value) if extent.constant is not None else f"{extent} = {value}"


KINDS: dict[str, Callable[[int, int], bool]] = {
    "equal": lambda a, b: a == b,
    "broadcast": lambda a, b: a == b or 1 in (a, b),
    "fits": lambda a, b: a in (b, 1),
    "divides": lambda a, b: b > 0 and a % b == 0,
    # an axis of extent 0 has no windows
    "reaches": lambda a, b: a >= b or a == 0,
}


def obligations_of(
    nodes: Sequence[LoweredNode],
    inputs: Sequence[Port],
    weights: Mapping[str, HostArray],
    declared: Mapping[str, Shape],
) -> Obligations:
    """The demands of a graph's nodes (in order) and of the symbols that `declared` shapes share with the inputs.

    Linear in nodes. A graph whose inputs have no open extents demands nothing: its kernels are compiled as it is.
    """
    sources, shapes = input_symbols(inputs)
    if not sources:
        return Obligations((), {})
    facts = Facts(shapes, weights)
    for node in nodes:
        facts.learn(node)
        for name in node.outputs:
            shape = declared.get(name)
            if shape is not None:
                facts.compare(name, [_told(d, sources) for d in shape])
    return Obligations(facts.demands, sources)


def _told(dim: Dim, sources: Sources) -> Extent | None:
    """What a declared extent says in symbols of the inputs. A number says nothing: exporters write those of the example
    they saw, and who opens an input's extent seldom opens all that follow from it."""
    needed = symbols_of(dim)
    return to_extent(dim) if isinstance(dim, str) and needed and needed <= sources.keys() else None
