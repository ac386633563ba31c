"""Recoveries by name: what command lines, requests and the environment ask for."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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

Recover = Any
"""Names, in one text with commas or one by one, `Stall`, and recoveries themselves, or one; None asks the environment."""


@dataclass(frozen=True, slots=True)
class Language:
    """What recoveries must know of a model's texts, and of what a request lets it call."""

    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = field(default=None)


def recoveries(wanted: Recover, language: Language) -> tuple[Any, ...]:
    """Make what was asked for, in that order.

    Parameters
    ----------
    wanted : str, Recovery, sequence of these, or None
        ``""`` and ``"none"`` are none.
    language : Language

    Raises
    ------
    RequestError
        If a name is not known or a number is none; the message lists what there is.
    """
    if wanted is None:
        wanted = from_environment()
    if isinstance(wanted, str):
        wanted = wanted.split(",")
    parts = list(wanted) if isinstance(wanted, Iterable) else [wanted]
    device_requests = [_named(part.strip()) if isinstance(part, str) else part for part in parts]
    made = [
        _stall(device_request, language) if isinstance(device_request, Stall) else device_request
        for device_request in device_requests
    ]
    return tuple(each for each in made if each is not None)


def from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """Names of the recoveries that the environment turns on; 0, false, no and off are none.

    ``DFLASH_STALL_TOOL_PREFIX`` may be 1 or the name of the tool that is called where nothing else says which;
    ``DFLASH_MIN_TOKENS`` is a number.
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
    """Names of the recoveries that a command was told, else the environment's; raises what `recoveries` would."""
    names = from_environment() if wanted is None else wanted
    check(names)
    return names


def check(wanted: Recover) -> None:
    """Raise what `recoveries` would, before there is a model."""
    for part in (wanted or "").split(",") if isinstance(wanted, str | None) else wanted:
        if isinstance(part, str):
            _split(part.strip())


def _named(text: str) -> Any:
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


def _stall(device_request: Stall, language: Language) -> ToolStall | None:
    """None where there is nothing to call, or no way to write calls."""
    if language.template is None:
        return None
    opened = opening(
        language.tokenizer, language.template, language.tools, language.tool_choice, default=device_request.tool or None
    )
    return None if opened is None else device_request.made(language.tokenizer, opened)


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
        raise RequestError(f"recover: {text!r:.60} is none of {NAMES}")
    return name, detail
