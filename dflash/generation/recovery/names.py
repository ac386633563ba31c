"""Recoveries by name, as given on the command line, in requests and in the environment."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash.decode.recoveries.base import Recovery
from dflash.decode.recoveries.empty_retry import EmptyRetry
from dflash.decode.recoveries.loop_guard import LoopGuard
from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.decode.recoveries.tool_stall import ToolStall
from dflash.errors import RequestError
from dflash.generation.recovery.tool_call_prefix import ToolChoice, opening
from dflash.generation.recovery.tool_stall import Stall
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

NAMES = "empty, stall, stall:TOOL, loop, loop:BODY, min:N"
STALL, LEAST = "DFLASH_STALL_TOOL_PREFIX", "DFLASH_MIN_TOKENS"
_OFF, _ON = ("", "0", "false", "no", "off"), ("1", "true", "yes", "on")

Recover = str | Recovery | Stall | Sequence[str | Recovery | Stall] | None
"""Comma-separated names, `Stall`, a recovery, or a sequence of names and these; None reads the environment."""


@dataclass(frozen=True, slots=True)
class Language:
    """Tokenizer, chat template and tools that text-level recoveries are built from."""

    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = field(default=None)


def recoveries(wanted: Recover, language: Language) -> tuple[Recovery, ...]:
    """Create the requested recoveries, in the given order.

    Parameters
    ----------
    wanted : str, Recovery, sequence of these, or None
        Names or objects; ``""`` and ``"none"`` mean no recovery.
    language : Language

    Raises
    ------
    RequestError
        If a name is not known or its number is not valid; the message lists the names.
    """
    if wanted is None:
        wanted = from_environment()
    if isinstance(wanted, str):
        wanted = wanted.split(",")
    parts = list(wanted) if isinstance(wanted, Iterable) else [wanted]
    found = [_named(part.strip()) if isinstance(part, str) else part for part in parts]
    made = [_stall(each, language) if isinstance(each, Stall) else each for each in found]
    return tuple(each for each in made if each is not None)


def from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """Return the names of the recoveries that the environment turns on; 0, false, no and off mean none.

    ``DFLASH_STALL_TOOL_PREFIX`` is 1 or the name of the tool to call if the request does not determine one.
    ``DFLASH_MIN_TOKENS`` is a number of tokens.
    """
    stall, least = (environment.get(name, "").strip() for name in (STALL, LEAST))
    names = []
    if stall.lower() not in _OFF:
        names.append("stall" if stall.lower() in _ON else f"stall:{stall}")
    if least.lower() not in _OFF:
        if not least.isascii() or not least.isdigit():
            raise RequestError(f"{LEAST}: must be a number of tokens or off, got {least!r:.40}")
        names.append(f"min:{least}")
    return ",".join(names)


def settle(wanted: str | None) -> str:
    """Return the given names of recoveries, else those of the environment. Raises as `recoveries` does."""
    names = from_environment() if wanted is None else wanted
    check(names)
    return names


def check(wanted: str | Iterable[str | Recovery | Stall] | None) -> None:
    """Check names of recoveries before a model is loaded. Raises as `recoveries` does."""
    for part in (wanted or "").split(",") if isinstance(wanted, str | None) else wanted:
        if isinstance(part, str):
            _split(part.strip())


def _named(text: str) -> Recovery | Stall | None:
    name, detail = _split(text)
    match name:
        case "empty":
            return EmptyRetry()
        case "loop":
            return LoopGuard(body=int(detail or 0))
        case "min":
            return MinTokens(int(detail))
        case "stall":
            return Stall(detail)
    return None


def _stall(stall: Stall, language: Language) -> ToolStall | None:
    """Build a `ToolStall`; None if there are no tools or the template can't render calls."""
    if language.template is None:
        return None
    opened = opening(language.tokenizer, language.template, language.tools, language.tool_choice, default=stall.tool or None)
    return None if opened is None else stall.made(language.tokenizer, opened)


def _split(text: str) -> tuple[str, str]:
    name, _, detail = text.partition(":")
    number = detail.isascii() and detail.isdigit() and len(detail) < 10
    good = {
        "": not detail,
        "none": not detail,
        "empty": ":" not in text,
        "stall": True,
        "loop": ":" not in text or number,
        "min": number,
    }
    if not good.get(name):
        raise RequestError(f"recover: {text!r:.60} is not one of {NAMES}")
    return name, detail
