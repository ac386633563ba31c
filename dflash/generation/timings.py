"""Token counts, durations and rates of a request."""

from typing import NamedTuple

from dflash.decode.session import Session


class Usage(NamedTuple):
    """Numbers of prompt and output tokens, the end token included, and of prompt tokens from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and output tokens together."""
        return self.prompt_tokens + self.completion_tokens


class Timings(NamedTuple):
    """Durations of a request in seconds, and token rates.

    first_token: from the start of the first prompt chunk to the first token.
    decode_rate: output tokens per second after the first step that produced tokens.
    """

    queued: float
    first_token: float
    decode: float
    prompt_rate: float
    decode_rate: float

    @classmethod
    def of(cls, session: Session) -> "Timings":
        """Compute the timings of a session. A stage that was never reached counts as 0."""
        added = session.added_at or 0.0
        started = session.started_at or added
        ended = session.ended_at or started
        first = session.first_token_at or ended
        read = sum(step.forward for step in session.steps if step.prefilled)
        n_after_first = session.n_tokens - next((len(step.tokens) for step in session.steps if step.tokens), 0)
        return cls(
            queued=started - added,
            first_token=first - started,
            decode=ended - first,
            prompt_rate=sum(step.prefilled for step in session.steps) / read if read else 0.0,
            decode_rate=n_after_first / (ended - first) if ended > first else 0.0,
        )
