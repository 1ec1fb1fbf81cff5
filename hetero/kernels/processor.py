"""What the operating system says of the processor: a text that tells processors apart, and the features it has."""

from __future__ import annotations

from functools import cache

_TELLING = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")


@cache
def description() -> str:
    """Name and features of the first processor, but not its clock. Raises: OSError where Linux's file is missing."""
    found = []
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                break
            if line.partition(":")[0].strip() in _TELLING:
                found.append(line)
    return "".join(found)


@cache
def features() -> frozenset[str]:
    """Features by LLVM's names ("avx512f", "avx512vnni"), which are the kernel's without underscores; empty where there
    is no word of them."""
    try:
        lines = description().splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return frozenset(flags.replace("_", "").split())
