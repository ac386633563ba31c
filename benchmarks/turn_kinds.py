"""Kinds of answers that agents get, by rules that don't depend on the recoveries. The first that fits counts.

========== =====================================================================================================
kind       rule
========== =====================================================================================================
loops      cut at the limit, and the end of the text compresses below a fifth; or a call is made five times
cut        cut at the limit otherwise
valid      calls of offered functions, and all arguments fit their JSON schemas
invalid    a call of another function, with other arguments, or an object that looks like a call and is not valid
leaked     no call was read, but the text holds an object that would be a valid one
empty      no visible character
code       the text ends in a block of code
announces  the last paragraph announces an action (`PHRASES` of the recovery) or ends in a colon
answer     all else
========== =====================================================================================================

An answer is right if the turn wants a call and gets a valid one, or if it wants none and gets text (``answer`` or ``code``).
"""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from dflash.generation.recovery.announcements import PHRASES

KINDS = "valid", "invalid", "leaked", "announces", "code", "answer", "empty", "loops", "cut"

TEXT_KINDS = "answer", "code"

TAIL = 1500
"""Characters at the end of a text that are compressed. Prose and code shrink to 35 to 50 %, lists of equal parts to 25 %."""

SHRUNK = 0.2
"""Compressed share of the tail below which it repeats itself."""

EQUAL_CALLS = 5

_BLOCK = "\0"
"""Stands for a block of code."""

_LOOKS = re.compile(
    r'<tool_call>|<function=|"name"\s*:\s*"[^"\n]*"\s*,\s*"(?:arguments|parameters)"|"(?:arguments|parameters)"\s*:\s*\{'
)
_FENCE = re.compile(r"^[ \t]*```[^\n]*\n.*?(?:^[ \t]*```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)


def kind_of(record: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the kind of a recorded answer, and what is wrong with it in a word or two.

    Parameters
    ----------
    record : mapping
        ``text`` as the model wrote it, ``content`` without calls, ``calls`` with ``name`` and ``arguments`` as JSON text,
        and ``finish``.
    tools : sequence of mapping
        The offered functions in OpenAI's format.
    """
    schemas = {tool["function"]["name"]: json.dumps(tool["function"].get("parameters") or {}) for tool in tools}
    calls, content, is_cut = record["calls"], record["content"], record["finish"] == "length"
    most = max(Counter((call["name"], call["arguments"]) for call in calls).values(), default=0)
    if most >= EQUAL_CALLS or (is_cut and repeats(record["text"])):
        return "loops", ""
    if is_cut:
        return "cut", ""
    if calls:
        faults = [fault for call in calls if (fault := fault_of(call["name"], call["arguments"], schemas))]
        return ("invalid", faults[0]) if faults else ("valid", "")
    if _LOOKS.search(content):
        found = [fault_of(name, arguments, schemas) for name, arguments in written_calls(content)]
        return ("leaked", "") if "" in found else ("invalid", (found or ["no JSON"])[0])
    if not content.strip():
        return "empty", ""
    prose = _FENCE.sub(_BLOCK, content).rstrip()
    if prose.endswith(_BLOCK):
        return "code", ""
    last = prose.replace(_BLOCK, "\n\n").rsplit("\n\n", 1)[-1]
    return ("announces" if last.endswith((":", "\uff1a")) or PHRASES.announce(last) else "answer"), ""


def is_right(kind: str, wants: str) -> bool:
    """Return True if an answer of this kind is what a turn wants."""
    return kind == "valid" if wants == "call" else kind in TEXT_KINDS


def repeats(text: str) -> bool:
    """Return True if the end of a text consists of repetitions."""
    tail = text[-TAIL:].encode()
    return len(zlib.compress(tail, 9)) < SHRUNK * len(tail)


def fault_of(name: str, arguments: str, schemas: Mapping[str, str]) -> str:
    """Return why a call is not valid, in a word or two; an empty text if it is."""
    if name not in schemas:
        return "function"
    try:
        value = json.loads(arguments)
    except ValueError:
        return "no JSON"
    if not isinstance(value, dict):
        return "no object"
    error = next(_validator(schemas[name]).iter_errors(value), None)
    return "" if error is None else str(error.validator)


def written_calls(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and arguments of each object in a text that has the keys of a call."""
    decoder, at = json.JSONDecoder(strict=False), text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            value, end = None, at + 1
        if isinstance(value, dict):
            arguments = value.get("arguments", value.get("parameters"))
            if isinstance(value.get("name"), str) and arguments is not None:
                yield value["name"], arguments if isinstance(arguments, str) else json.dumps(arguments)
            else:
                end = at + 1
        at = text.find("{", end)


@cache
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))
