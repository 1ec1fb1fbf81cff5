"""Residency, the pure part: which weights stay on a device under a byte budget, and what the others share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hetero.errors import MemoryLimitError

Steps = Sequence[Collection[str]]
"""The weights that each instruction reads, in the order of execution; after the last one comes the first one again."""
COPY_BYTES = 64 << 10
"""What a copy costs besides its bytes, as bytes: it is launched by itself, and cuts a captured segment in two."""


@dataclass(frozen=True, slots=True)
class Residency:
    """A verdict over all weights that are read.

    `resident` are uploaded once and stay. Every other weight is paged: copied into staging buffer `placed[weight]`
    before it is used, unless it is still there. `buffers` are the bytes of these. `step_copies`, `step_bytes`: what a
    step copies once the first one is over, as far as bodies run once each.

    Invariant: sizes of `resident` and `buffers` add up to at most the budget; two weights that one instruction reads
    never share a buffer; each fits its own.
    """

    resident: frozenset[str]
    buffers: tuple[int, ...] = ()
    placed: Mapping[str, int] = field(default_factory=dict)
    step_copies: int = 0
    step_bytes: int = 0


def plan_residency(
    steps: Steps,
    sizes: Mapping[str, int],
    pinned: Collection[str],
    budget_bytes: int,
    *,
    spare: bool = False,
    copy_bytes: int = COPY_BYTES,
) -> Residency:
    """Keep what saves the most copies; let the rest share staging buffers so that what is used again last makes room.

    `sizes`: bytes by weight. `pinned` must stay. `spare`: one staging buffer more where the budget has room for it, so
    that a weight can be fetched while the one before it is still in use. `copy_bytes`: the price of a copy besides its
    bytes. O(n log n) in the reads.

    Raises: MemoryLimitError naming the weight that cannot be there together with what must be.
    """
    problem = _Problem(steps, sizes, frozenset(pinned), budget_bytes)
    if problem.total <= budget_bytes:
        return Residency(problem.resident | frozenset(problem.paged))
    problem.check()
    candidates = [
        sorted(problem.paged, key=lambda w: -len(problem.reads[w]) * (1 + copy_bytes / sizes[w])),
        sorted(problem.paged, key=lambda w: -sizes[w]),
    ]
    for extra in (True, False) if spare else (False,):
        plans = [p for p in (problem.solve(c, spare=extra) for c in candidates) if p is not None]
        if plans:
            return min(plans, key=lambda p: (p.step_bytes + copy_bytes * p.step_copies, sum(p.buffers)))
    largest = max(problem.paged, key=lambda w: sizes[w])
    raise MemoryLimitError(
        f"weight {largest!r} ({sizes[largest]} bytes) and those that are read two at a time need staging buffers, with "
        f"which {problem.least_bytes()} bytes of weights are on the device; the weight budget is {budget_bytes} bytes",
        operand=largest,
    )


class _Problem:
    """What is to be planned: `resident` must stay, `paged` may stay; both are read by somebody."""

    def __init__(
        self, steps: Steps, sizes: Mapping[str, int], pinned: frozenset[str], budget_bytes: int
    ) -> None:
        self.sizes = sizes
        self.budget_bytes = budget_bytes
        read = dict.fromkeys(w for step in steps for w in step)
        self.resident = frozenset(w for w in pinned if w in sizes) | {w for w in read if not sizes[w]}
        self.paged = [w for w in read if w not in self.resident]
        self.total = sum(sizes[w] for w in {*self.resident, *self.paged})
        self.fixed_bytes = sum(sizes[w] for w in self.resident)
        self.steps = [tuple(dict.fromkeys(w for w in s if w not in self.resident)) for s in steps]
        self.reads: dict[str, list[int]] = {w: [] for w in self.paged}
        self.beside: dict[str, set[str]] = {w: set() for w in self.paged}
        for at, step in enumerate(self.steps):
            for w in step:
                self.reads[w].append(at)
                if len(step) > 1:
                    self.beside[w].update(v for v in step if v != w)

    def check(self) -> None:
        """Raises: MemoryLimitError where what must be there at once is more than the budget."""
        together = max(self.steps, key=lambda step: sum(self.sizes[w] for w in step), default=())
        needed = self.fixed_bytes + sum(self.sizes[w] for w in together)
        if needed <= self.budget_bytes:
            return
        worst = max(together or self.resident, key=lambda w: (self.sizes[w], w))
        raise MemoryLimitError(
            f"weight {worst!r} ({self.sizes[worst]} bytes) needs {needed - self.sizes[worst]} bytes of other weights "
            f"beside it on the device, and the weight budget is {self.budget_bytes} bytes",
            operand=worst,
        )

    def least_bytes(self) -> int:
        """What is needed where nothing stays that need not."""
        return self.fixed_bytes + sum(self._coloured(frozenset())[0])

    def solve(self, candidates: Sequence[str], *, spare: bool) -> Residency | None:
        """Makes as many of `candidates` resident as fit, first ones first; None where the rest has no room even so."""

        def needed(residents: Collection[str]) -> tuple[int, list[int], dict[str, int]]:
            buffers, placed = self._coloured(frozenset(residents))
            if spare and buffers:
                buffers.append(buffers[0])
            return self.fixed_bytes + sum(self.sizes[w] for w in residents) + sum(buffers), buffers, placed

        low, high = 0, len(candidates)  # to keep one weight more never needs less
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if needed(candidates[:middle])[0] <= self.budget_bytes else (low, middle - 1)
            )
        kept = list(candidates[:low])
        total, buffers, placed = needed(kept)
        if total > self.budget_bytes:
            return None
        for w in candidates[low:]:
            if total + self.sizes[w] <= self.budget_bytes:
                total += self.sizes[w]
                kept.append(w)
        _, buffers, placed = needed(kept)
        steps = [[w for w in step if w in placed] for step in self.steps]
        placed = self._walked(steps, buffers, spread=spare) or placed
        return Residency(
            self.resident | frozenset(kept), tuple(buffers), placed, *self._copied(steps, placed)
        )

    def _coloured(self, residents: frozenset[str]) -> tuple[list[int], dict[str, int]]:
        """Buffers for what is not resident, largest first, as few as first fit needs."""
        buffers: list[int] = []
        placed: dict[str, int] = {}
        for w in sorted((w for w in self.paged if w not in residents), key=lambda w: -self.sizes[w]):
            taken = {placed[v] for v in self.beside[w] if v in placed}
            at = next(k for k in range(len(buffers) + 1) if k not in taken)
            if at == len(buffers):
                buffers.append(self.sizes[w])
            placed[w] = at
        return buffers, placed

    def _walked(
        self, steps: Sequence[Sequence[str]], buffers: Sequence[int], *, spread: bool
    ) -> dict[str, int] | None:
        """Where each weight goes, by its first read: to the buffer whose weight is read again last (Belady). `spread`:
        rather to the one that has been idle longest. None where that ends in a corner."""
        placed: dict[str, int] = {}
        holder: list[str | None] = [None] * len(buffers)
        touched = [-1] * len(buffers)
        for at, step in enumerate(steps):
            for w in step:
                if w not in placed:
                    taken = {placed[v] for v in self.beside[w] if v in placed}
                    free = [k for k, n in enumerate(buffers) if n >= self.sizes[w] and k not in taken]
                    if not free:
                        return None

                    def worth(k: int, at: int = at) -> tuple[int, int]:
                        again = self._next_read(holder[k], at, len(steps))
                        return (-touched[k] if spread and again >= len(steps) else again), -buffers[k]

                    placed[w] = max(free, key=worth)
                holder[placed[w]] = w
                touched[placed[w]] = at
        return placed

    def _next_read(self, w: str | None, after: int, period: int) -> int:
        if w is None:
            return 2 * period
        reads = self.reads[w]
        k = bisect_right(reads, after)
        return reads[k] if k < len(reads) else period + reads[0]

    def _copied(self, steps: Sequence[Sequence[str]], placed: Mapping[str, int]) -> tuple[int, int]:
        """Copies and bytes in a step that follows another one."""
        holder: dict[int, str] = {}
        copies = copied = 0
        for _ in range(2):  # of which the first fills the buffers
            copies = copied = 0
            for step in steps:
                for w in step:
                    if holder.get(placed[w]) != w:
                        holder[placed[w]] = w
                        copies += 1
                        copied += self.sizes[w]
        return copies, copied
