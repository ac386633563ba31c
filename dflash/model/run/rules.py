"""Fusion rules: ways in which neighbouring ops of a program run together, each of which can be switched off."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dflash.errors import RequestError

RULES = {
    "joined": "CPU: up to 8 rows run in few parallel launches; same bits",
    "carried-norm": "GPU: the multiplies around a norm carry it; last bits differ",
    "gated-norm": "GPU: the gated norm is part of the launch of the delta rule; last bits differ",
    "early-read": "GPU: a multiply of one row reads what experts publish before their launch has ended; same bits",
    "rotate-attend": "GPU: rotation and attention of one row are one launch; same bits",
    "pass-start": "GPU: embedding, angles and the first norm are one launch; same bits",
}
"""Rules by name; each says where it applies, and whether results keep their bits."""

_off = set[str]()


@contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """Switch rules off in this process, for models that are loaded and run meanwhile."""
    names = set(names)
    if unknown := sorted(names - RULES.keys()):
        raise RequestError(f"no fusion rule is called {unknown[0]!r}; there are {', '.join(RULES)}")
    before = set(_off)
    _off.update(names)
    try:
        yield
    finally:
        _off.intersection_update(before)


def applies(rule: str) -> bool:
    """Return whether a rule is switched on."""
    assert rule in RULES, "a rule of the table"
    return rule not in _off
