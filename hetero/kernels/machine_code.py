"""Machine code that stands alone: from a compiler's object file to an image that any process may load and call.

An image is what one function of the object file needs and no more, every address in it relative to its own beginning.
It begins with an entry of one argument: the address of a block of 64-bit words, the function's operands. Loading it
takes neither compiler nor linker. For 64-bit x86 and ELF, in the two kinds of relocation that numba's code has.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgpack
import numpy as np

_X86_64, _RELOCATABLE, _ABSOLUTE_64 = 62, 1, 1
_PROGBITS, _SYMTAB, _RELA = 1, 2, 4
_WRITE, _ALLOC, _EXEC, _TLS = 1, 2, 4, 0x400
_FUNC = 2
_UNDEFINED, _COMMON = 0, 0xFFF2
_LINE = 64

Address: TypeAlias = Callable[[str], int]
"""Where the function (or variable) of a name lies in this process. Raises: KeyError where there is none."""


@dataclass(frozen=True, slots=True)
class Image:
    """`code` with, at each of the offsets `relative`, a word to which the address of its beginning is to be added, and
    at each of `external` one to which that of a function elsewhere is."""

    code: bytes
    relative: tuple[int, ...]
    external: tuple[tuple[int, str], ...]

    def packed(self) -> bytes:
        """As bytes."""
        return bytes(msgpack.packb([self.code, self.relative, self.external]))

    @classmethod
    def unpacked(cls, data: bytes) -> Image:
        """What `packed` made."""
        code, relative, external = msgpack.unpackb(data)
        return cls(code, tuple(relative), tuple((at, name) for at, name in external))


class UnfitError(Exception):
    """The code needs something that an image cannot bring: a runtime of its own, another machine."""


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    flags: int
    data: bytes
    link: int
    info: int
    align: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    kind: int
    section: int
    value: int
    size: int


@dataclass(frozen=True, slots=True)
class _Relocation:
    at: int
    kind: int
    symbol: _Symbol
    addend: int


class _Object:
    """A relocatable ELF file, read."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", data, 16) != (_RELOCATABLE, _X86_64):
            raise UnfitError("no object file of a 64-bit x86")
        (table,) = struct.unpack_from("<Q", data, 0x28)
        step, count = struct.unpack_from("<HH", data, 0x3A)
        self.sections: list[_Section] = []
        for k in range(count):
            _, kind, flags, _, start, size, link, info, align, _ = struct.unpack_from(
                "<IIQQQQIIQQ", data, table + step * k
            )
            self.sections.append(_Section(kind, flags, data[start : start + size], link, info, max(1, align)))
        (symtab,) = (s for s in self.sections if s.kind == _SYMTAB)
        names = self.sections[symtab.link].data
        self.symbols = [
            _Symbol(names[at : names.index(0, at)].decode(), kind & 15, section, value, size)
            for at, kind, _, section, value, size in struct.iter_unpack("<IBBHQQ", symtab.data)
        ]
        self.relocations: dict[int, list[_Relocation]] = {}
        for section in self.sections:
            if section.kind == _RELA:
                self.relocations[section.info] = [
                    _Relocation(at, info & 0xFFFFFFFF, self.symbols[info >> 32], addend)
                    for at, info, addend in struct.iter_unpack("<QQq", section.data)
                ]

    def function_at(self, section: int, address: int) -> _Symbol:
        """The function that has this address inside it."""
        for symbol in self.symbols:
            inside = symbol.value <= address < symbol.value + symbol.size
            if symbol.kind == _FUNC and symbol.section == section and inside:
                return symbol
        raise UnfitError("a jump out of every function")


def image_of(data: bytes, name: str, n_words: int, address: Address) -> Image:
    """The image of function `name` of an object file, which takes `n_words` operands after the two addresses that
    numba's functions begin with: that of a result, and that of an exception. Neither is looked at.

    Raises: UnfitError where the code needs what has no `address`, or keeps something from call to call.
    """
    try:
        file = _Object(data)
        entry = next(s for s in file.symbols if s.name == name and s.kind == _FUNC)
    except (struct.error, ValueError, StopIteration, IndexError) as error:
        raise UnfitError(f"no object file with {name}") from error
    kept = _kept(file, entry, address)
    start, calls = _entry(n_words)
    code = bytearray(start)
    places: dict[int, int] = {}
    for number in sorted({section for section, _ in kept}):
        section = file.sections[number]
        code += bytes(-len(code) % max(_LINE, section.align))
        places[number] = len(code)
        code += section.data
    common: dict[str, int] = {}
    relative, external = [calls], []
    struct.pack_into("<Q", code, calls, places[entry.section] + entry.value)
    for number, relocation in kept:
        if relocation is None:
            continue
        at, symbol = places[number] + relocation.at, relocation.symbol
        if symbol.section == _UNDEFINED:
            external.append((at, symbol.name))
            target = 0
        else:
            relative.append(at)
            if symbol.section == _COMMON:
                if symbol.name not in common:
                    code += bytes(-len(code) % 8)
                    common[symbol.name] = len(code)
                    code += bytes(symbol.size)
                target = common[symbol.name]
            else:
                target = places[symbol.section] + symbol.value
        struct.pack_into("<q", code, at, target + relocation.addend)
    return Image(bytes(code), tuple(relative), tuple(external))


def _kept(file: _Object, entry: _Symbol, address: Address) -> list[tuple[int, _Relocation | None]]:
    """(section, relocation) of all that can be reached from `entry`; each section at least once."""
    kept: list[tuple[int, _Relocation | None]] = [(entry.section, None)]
    functions, tables = {entry}, {entry.section}
    todo: list[tuple[int, Iterable[_Relocation]]] = [(entry.section, _inside(file, entry))]
    while todo:
        number, found = todo.pop()
        for relocation in found:
            kept.append((number, relocation))
            symbol = relocation.symbol
            if relocation.kind != _ABSOLUTE_64:
                raise UnfitError(f"relocation of kind {relocation.kind}")
            if symbol.section == _UNDEFINED:
                _found(symbol.name, address)
                continue
            if symbol.section == _COMMON:
                continue
            section = file.sections[symbol.section]
            if section.kind != _PROGBITS or not section.flags & _ALLOC or section.flags & (_WRITE | _TLS):
                raise UnfitError("it keeps something from call to call")
            if section.flags & _EXEC:
                called = file.function_at(symbol.section, symbol.value + relocation.addend)
                if called not in functions:
                    functions.add(called)
                    kept.append((symbol.section, None))
                    todo.append((symbol.section, _inside(file, called)))
            elif symbol.section not in tables:
                tables.add(symbol.section)
                kept.append((symbol.section, None))
                todo.append((symbol.section, file.relocations.get(symbol.section, ())))
    return kept


def _inside(file: _Object, function: _Symbol) -> list[_Relocation]:
    end = function.value + function.size
    found = file.relocations.get(function.section, ())
    return [r for r in found if function.value <= r.at < end]


def _entry(n_words: int) -> tuple[bytes, int]:
    """Code that calls a function with the words of a block, and where in it the function's address belongs. By the
    System V convention, four words are in registers after the two addresses, the others on the stack."""
    on_stack = max(0, n_words - 4)
    room = -(-(8 * on_stack + 16) // 16) * 16
    code = bytearray(b"\xf3\x0f\x1e\xfa\x55\x48\x89\xe5")  # endbr64; push rbp; mov rbp, rsp
    code += b"\x48\x81\xec" + struct.pack("<i", room)  # sub rsp, room
    code += b"\x48\x89\xf8"  # mov rax, rdi
    for k in range(on_stack):
        code += b"\x4c\x8b\x90" + struct.pack("<i", 8 * (4 + k))  # mov r10, [rax + ..]
        code += b"\x4c\x89\x94\x24" + struct.pack("<i", 8 * k)  # mov [rsp + ..], r10
    for k, load in enumerate((b"\x48\x8b\x90", b"\x48\x8b\x88", b"\x4c\x8b\x80", b"\x4c\x8b\x88")):
        if k < n_words:
            code += load + struct.pack("<i", 8 * k)  # mov rdx, rcx, r8, r9, [rax + ..]
    code += b"\x48\x8d\x7d\xf8\x48\x8d\x75\xf0"  # lea rdi, [rbp - 8]; lea rsi, [rbp - 16]
    code += b"\x49\xbb"  # mov r11, the function
    calls = len(code)
    code += bytes(8) + b"\x41\xff\xd3\xc9\xc3"  # call r11; leave; ret
    return bytes(code), calls


_loaded: list[Any] = []
"""Images that functions lie in: code is never unloaded."""


def load(image: Image, address: Address) -> Callable[[Any], None]:
    """What to call with a block of operands (a ctypes array): from any thread, and without the interpreter's lock.

    Raises: OSError where memory may not hold code that was made at run time; UnfitError for an unknown function.
    """
    if sys.platform != "linux":
        raise UnfitError("images are for Linux")
    memory = mmap.mmap(-1, len(image.code), prot=mmap.PROT_READ | mmap.PROT_WRITE)
    memory[: len(image.code)] = image.code
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    words = np.ndarray((len(image.code) - 7,), "<u8", memory, strides=(1,))  # one at every byte
    words[np.array(image.relative, np.intp)] += np.uint64(base)
    for at, name in image.external:
        words[at] += np.uint64(_found(name, address))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(len(memory)), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "memory cannot be made to hold code")
    _loaded.append((memory, words))
    called: Callable[[Any], None] = ctypes.CFUNCTYPE(None)(base)
    return called


def _found(name: str, address: Address) -> int:
    try:
        return address(name)
    except KeyError as error:
        raise UnfitError(f"there is no {name}") from error
