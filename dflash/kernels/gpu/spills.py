"""Compile again where the compiler spilled registers to memory although a source needs no spills.

NVRTC is not deterministic: now and then it makes other machine code of the same source, rarely with spills, which are slow.
A source whose values exceed the registers of a thread defines ``MAY_SPILL``; all other sources promise to need no spills.
"""

import re
from collections.abc import Callable

ATTEMPTS = 3
"""Most compilations of a source. One in 115 compilations of a source by NVRTC 13.5 had spills; if three in a row have, the
registers do not suffice."""

FEW_REGISTERS = "-DFEW_REGISTERS"
"""Option of the last of these compilations: with this macro a source holds fewer values at a time, for the same results."""

_MAY_SPILL = re.compile(r"^#define MAY_SPILL\b", re.MULTILINE)


def spilled_bytes(log: str) -> int:
    """Return the bytes of registers that the compiler spilled, from its log with ``--ptxas-options=-v``."""
    return sum(int(n) for n in re.findall(r"(\d+) bytes spill", log))


def may_spill(text: str) -> bool:
    """Return whether a source, with its includes pasted in, defines ``MAY_SPILL``."""
    return _MAY_SPILL.search(text) is not None


def compile_without_spills(text: str, compile_once: Callable[[tuple[str, ...]], tuple[bytes, str]]) -> tuple[bytes, str]:
    """Return code and log of the compilation with the fewest spills: the first without, or the best of `ATTEMPTS`.

    `compile_once` takes more options of the compiler.
    """
    made = [compile_once(())]
    while spilled_bytes(made[-1][1]) and not may_spill(text) and len(made) < ATTEMPTS:
        made.append(compile_once((FEW_REGISTERS,) if len(made) == ATTEMPTS - 1 else ()))
    return min(made, key=lambda each: spilled_bytes(each[1]))
