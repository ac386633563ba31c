"""Measurements of the requests of one turn."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dflash.decode.shared_prefix import n_shared


class Reply(NamedTuple):
    """Measurements of one request.

    prompt_tokens, cached_tokens: tokens of the prompt, and how many of them came from the prefix cache.
    first_token: seconds from the request to its first token.
    seconds: seconds from the request to its end.
    processor: seconds of processor time of all threads of the process meanwhile.
    empty: the model has ended its answer without content or a tool call.
    """

    prompt_tokens: int
    cached_tokens: int
    first_token: float
    seconds: float
    processor: float
    tokens: list[int]
    tokens_per_step: float
    finish_reason: str
    empty: bool


@dataclass(eq=False)
class TurnReplies:
    """Requests of one turn: one of each kind per round, except those that failed, whose messages are in `errors`."""

    name: str
    cold: list[Reply] = field(default_factory=list)
    warm: list[Reply] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def failures(self) -> Iterator[str]:
        """Yield a sentence for each error, each empty answer, and each warm output that is not the cold one."""
        yield from self.errors
        for kind, replies in (("cold", self.cold), ("warm", self.warm)):
            yield from (f"{kind}: the answer is empty" for reply in replies if reply.empty)
        for reply in self.warm if self.cold else ():
            want = self.cold[0].tokens
            if reply.tokens != want:
                yield f"warm: the output differs from the cold one from token {n_shared(reply.tokens, want)}"

    def median(self, kind: str, measure: str) -> float | None:
        """Return the median of a field of the ``"cold"`` or ``"warm"`` requests; None if none has succeeded."""
        replies: Sequence[Reply] = getattr(self, kind)
        return statistics.median(getattr(reply, measure) for reply in replies) if replies else None
