"""com.microsoft's MurmurHash3: the 32-bit hash of every element's bytes (MurmurHash3_x86_32, by Austin Appleby)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.errors import UnsupportedError
from hetero.kernels.base import Call, Compiled, computed, kernel, tensor
from hetero.program.operation import Operation
from hetero.types import STRING, HostArray, Spec, TensorSpec

_C1, _C2 = 0xCC9E2D51, 0x1B873593
_MASK = 0xFFFFFFFF


def _rotated(word: Any, by: int) -> Any:
    return (word << by | word >> (32 - by)) & _MASK


def _scrambled(word: Any) -> Any:
    return _rotated(word * _C1 & _MASK, 15) * _C2 & _MASK


def _finished(state: Any, length: int) -> Any:
    state = state ^ length
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def _mixed(words: Sequence[Any], seed: Any) -> Any:
    """The state after whole words. Works on Python integers and on uint64 arrays, which hold 32-bit products."""
    for word in words:
        seed = (_rotated(seed ^ _scrambled(word), 13) * 5 + 0xE6546B64) & _MASK
    return seed


def hash_bytes(data: bytes, seed: int) -> int:
    """The hash of one string of bytes."""
    whole = len(data) // 4
    state = _mixed(np.frombuffer(data, "<u4", whole).tolist(), seed)
    if rest := data[4 * whole :]:
        state ^= _scrambled(int.from_bytes(rest, "little"))
    return int(_finished(state, len(data)))


def hash_elements(x: HostArray, seed: int) -> HostArray:
    """The hash of every element of an array of 4- or 8-byte numbers, as uint64."""
    words = np.ascontiguousarray(x).reshape(-1).view("<u4").astype(np.uint64).reshape(x.size, -1)
    state = np.full(x.size, seed, np.uint64)
    hashed: HostArray = _finished(_mixed(list(words.T), state), x.itemsize)
    return hashed.reshape(x.shape)


@kernel("MurmurHash3", domain="com.microsoft", versions=(1,), portable=False)
def murmur_hash3(op: Operation, specs: Sequence[Spec], xp: Any) -> Compiled:
    """X (strings, or numbers of 4 or 8 bytes) -> the hash of each element: uint32, or int32 where `positive` is 0."""
    x = tensor(op, specs, 0)
    if x.dtype != STRING and (x.dtype.kind not in "iuf" or x.dtype.itemsize not in (4, 8)):
        raise UnsupportedError(f"{op.id} of {x.dtype}", op=op.id, node=op.name)
    seed = int(op.attr("seed", 0)) & _MASK
    output = TensorSpec(np.dtype(np.uint32 if op.attr("positive", 1) else np.int32), x.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Call:
        source, out = inputs[0], outputs[0].view(np.uint32)

        def call() -> None:
            if x.dtype == STRING:
                for index in np.ndindex(x.shape):
                    out[index] = hash_bytes(_encoded(source[index]), seed)
            else:
                out[...] = hash_elements(source, seed)

        return call

    return computed((output,), bind)


def _encoded(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()
