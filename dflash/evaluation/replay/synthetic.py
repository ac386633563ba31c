"""A synthetic agent session, for replays without a file."""

import random
from collections.abc import Iterator

from dflash.decode.sampling.params import check_whole
from dflash.evaluation.replay.messages import call
from dflash.evaluation.replay.turn import Turn, growing
from dflash.json_types import JsonObject

_SYSTEM = (
    "You are a careful agent that works in a repository. Read a file before you change it, and keep each answer short. "
)
_WORDS = (
    *("the", "a", "file", "test", "value", "name", "list", "line", "path", "index", "state", "token", "cache", "page"),
    *("layer", "buffer", "reads", "writes", "holds", "returns"),
)
_N_RULES = 24
"""Repetitions of the system text, so that it is longer than a turn, as in real sessions."""


def synthetic(n_turns: int = 10) -> list[Turn]:
    """Return the turns of a conversation in which an agent reads one file after the other; the same in every run.

    Each prompt is the one before it, the answer to that, which calls a tool, and the tool's result, about 130 tokens
    together.
    """
    check_whole("turns", n_turns, 1)
    properties = {"path": {"type": "string"}, "first_line": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties}
    function = {"name": "read_file", "description": "Read a file.", "parameters": parameters}
    whole = Turn(f"turn {n_turns}", (), [{"type": "function", "function": function}])
    return list(growing(_conversation(n_turns), whole))


def _conversation(n_turns: int) -> Iterator[tuple[str, JsonObject]]:
    draws = random.Random(0)
    yield "", {"role": "system", "content": _SYSTEM * _N_RULES}
    yield "", {"role": "user", "content": "Find out how the cache evicts its pages."}
    for turn in range(1, n_turns):
        lines = (" ".join(draws.choices(_WORDS, k=8)) for _ in range(8))
        arguments = {"path": f"src/part_{turn}.py", "first_line": 10 * turn}
        calls = [call("read_file", arguments, f"call_{turn}")]
        yield f"turn {turn}", {"role": "assistant", "content": "Let me read the next file.", "tool_calls": calls}
        yield "", {"role": "tool", "tool_call_id": f"call_{turn}", "content": "\n".join(lines)}
