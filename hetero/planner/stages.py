"""Stages: a chain of nodes cut into one contiguous piece per device, exactly: slowest stage first, then moved bytes.

What a device may take is hereditary: of a piece that fits, every part fits. So the furthest that the first k devices
reach is reached greedily, which tells for any bound on the time whether it can be kept; the least such bound is found
by bisection. A dynamic program over the places to cut then finds, among all cuts that keep it, those that move the
fewest bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

_Ints: TypeAlias = npt.NDArray[np.int64]

_FAR = 1 << 61
_MOST_BYTES = 1 << 59
"""Of all values together; larger ones are counted as less."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What is to be dealt, in topological order: per item its time and the numbers of the weights and values it reads,
    and of the values it makes. Times and bytes are whole numbers, 0 or more; their sums stay below 2**62."""

    times: Sequence[int]
    weights: Sequence[Sequence[int]]
    reads: Sequence[Sequence[int]]
    makes: Sequence[Sequence[int]]
    weight_bytes: Sequence[int]
    value_bytes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Device:
    """Where a stage may go, and what is there already.

    `limit_bytes`: of weights, those that are there (`held`) included; None: no limit. `time`: of what runs there
    already. `arrives`: values that are brought there anyway, unless they are made there; `made`: values made there.
    """

    limit_bytes: int | None = None
    time: int = 0
    held: frozenset[int] = field(default_factory=frozenset)
    arrives: frozenset[int] = field(default_factory=frozenset)
    made: frozenset[int] = field(default_factory=frozenset)


def deal(chain: Chain, devices: Sequence[Device]) -> list[int] | None:
    """Where to cut: device d takes the items from cuts[d] to cuts[d + 1]; None where no cut keeps every limit.

    Of all cuts the one with the smallest largest time of a device; of those, the one that brings the fewest bytes to
    devices (a value once per device that reads it and does not make it); of those, the one that leaves the last
    devices least. Deterministic; O((items + reads) * devices) array operations.
    """
    n = len(chain.times)
    prefix: _Ints = np.zeros(n + 1, np.int64)
    np.cumsum(np.asarray(chain.times, np.int64), out=prefix[1:])
    lows = [_lowest_starts(chain, device) for device in devices]
    if any(low is None for low in lows):
        return None
    by_memory = [low for low in lows if low is not None]
    bound = _least_bound(prefix, devices, by_memory)
    if bound is None:
        return None
    low = np.stack(
        [
            np.maximum(memory, np.searchsorted(prefix, prefix - (bound - device.time)))
            for memory, device in zip(by_memory, devices, strict=True)
        ]
    )
    return _fewest_bytes(chain, devices, low, _reaches(prefix, devices, by_memory, bound))


def fill(chain: Chain, devices: Sequence[Device]) -> list[tuple[int, int]]:
    """(bytes, first item) of each device where each takes as much as its memory holds and the last all that is left:
    what to say when nothing fits."""
    found: list[tuple[int, int]] = []
    start = 0
    for number, device in enumerate(devices):
        low = _lowest_starts(chain, device)
        stop = start if low is None else int(np.searchsorted(low, start, "right")) - 1
        if number == len(devices) - 1:
            stop = len(chain.times)
        held = device.held.union(*chain.weights[start:stop])
        found.append((sum(chain.weight_bytes[w] for w in held), start))
        start = stop
    return found


def _lowest_starts(chain: Chain, device: Device) -> _Ints | None:
    """For each end the lowest start from which the device can hold the weights (the end itself: only nothing fits);
    None where what is there already is too much."""
    n = len(chain.times)
    low: _Ints = np.zeros(n + 1, np.int64)
    if device.limit_bytes is None:
        return low
    sizes = chain.weight_bytes
    room = device.limit_bytes - sum(sizes[w] for w in device.held)
    if room < 0:
        return None
    uses: Counter[int] = Counter()
    start = used = 0
    for stop in range(1, n + 1):
        for weight in chain.weights[stop - 1]:
            if weight not in device.held:
                used += sizes[weight] if not uses[weight] else 0
                uses[weight] += 1
        while used > room:
            for weight in chain.weights[start]:
                if weight not in device.held:
                    uses[weight] -= 1
                    used -= sizes[weight] if not uses[weight] else 0
            start += 1
        low[stop] = start
    return low


def _reaches(
    prefix: _Ints, devices: Sequence[Device], by_memory: Sequence[_Ints], bound: int
) -> list[int] | None:
    """How far the first k devices get, for each k, if none takes longer than `bound`; None where one does already."""
    reaches = [0]
    for device, low in zip(devices, by_memory, strict=True):
        if device.time > bound:
            return None
        start = reaches[-1]
        fits = int(np.searchsorted(low, start, "right")) - 1
        in_time = int(np.searchsorted(prefix, prefix[start] + (bound - device.time), "right")) - 1
        reaches.append(max(start, min(fits, in_time)))
    return reaches


def _least_bound(prefix: _Ints, devices: Sequence[Device], by_memory: Sequence[_Ints]) -> int | None:
    """The least time that no device need exceed; None where memory does not suffice whatever the time."""
    n = len(prefix) - 1
    busiest = max(device.time for device in devices)
    low, high = busiest, busiest + int(prefix[-1])
    reaches = _reaches(prefix, devices, by_memory, high)
    if reaches is None or reaches[-1] < n:
        return None
    while low < high:
        middle = (low + high) // 2
        reaches = _reaches(prefix, devices, by_memory, middle)
        if reaches is not None and reaches[-1] == n:
            high = middle
        else:
            low = middle + 1
    return low


def _fewest_bytes(
    chain: Chain, devices: Sequence[Device], low: _Ints, reaches: Sequence[int] | None
) -> list[int]:
    """The cuts that bring the fewest bytes to devices, where device d may take [start, stop) for start >= low[d, stop].

    `total[d, start]` is the least that the devices before d and, from `start` on, device d itself are brought, as far
    as the items have been looked at. An item that reads a value adds its bytes for every start after the value was
    made or last read; so each step is an addition to a range, and a minimum over one.
    """
    assert reaches is not None, "the bound that low stands for can be kept"
    n, count = len(chain.times), len(devices)
    sizes = _bounded(chain)
    total = np.full((count, n + 1), _FAR, np.int64)
    choice = np.zeros((count, n + 1), np.int64)
    floor = low.min(axis=0)
    free = _rows(devices, [device.arrives | device.made for device in devices])
    wanted = _rows(devices, [device.arrives - device.made for device in devices])
    since: dict[int, int] = {}
    for stop in range(n + 1):
        if stop:
            bottom = int(floor[stop])
            for value in dict.fromkeys(chain.reads[stop - 1]):
                start = max(since.get(value, 0), bottom)
                since[value] = stop
                if start < stop and sizes[value]:
                    rows = total[:, start:stop]
                    rows += sizes[value]
                    if value in free:
                        rows[free[value]] -= sizes[value]
            for value in chain.makes[stop - 1]:
                since[value] = stop
                if value in wanted:  # made where it would have been brought to
                    total[wanted[value], bottom:stop] -= sizes[value]
        if stop == 0:
            total[0, 0] = 0
        for d in range(count):
            if stop <= reaches[d + 1]:
                start = int(low[d, stop])
                row = total[d, start : stop + 1]
                best = stop - int(row[::-1].argmin())
                choice[d, stop] = best
                if d + 1 < count:
                    total[d + 1, stop] = total[d, best]
    cuts = [n]
    for d in reversed(range(count)):
        cuts.append(int(choice[d, cuts[-1]]))
    assert cuts[-1] == 0, "the bound can be kept"
    return cuts[::-1]


def _rows(devices: Sequence[Device], sets: Sequence[frozenset[int]]) -> dict[int, list[int]]:
    """Value -> the devices in whose set it is."""
    found: dict[int, list[int]] = {}
    for d in range(len(devices)):
        for value in sets[d]:
            found.setdefault(value, []).append(d)
    return found


def _bounded(chain: Chain) -> list[int]:
    """Bytes of the values, small enough that no sum of them overflows."""
    moves = sum(map(len, chain.reads)) + sum(map(len, chain.makes))
    most = _MOST_BYTES // max(moves, 1)
    return [min(size, most) for size in chain.value_bytes]
