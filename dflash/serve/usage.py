"""Token counts of a response."""

from collections.abc import Sequence
from dataclasses import dataclass

from dflash.decode.drafting.drafter import Nothing
from dflash.decode.session import Session
from dflash.generation.completion import Completion


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token counts of all completions of a response.

    reasoning: output tokens of reasoning, with the one that closes it. The tokens of a call that ends reasoning do not
        count.
    rows: mean rows of the forwards that gave output tokens, those of other requests included; None if no strategy drafts.
    """

    prompt: int
    cached: int
    output: int
    reasoning: int
    drafted: int
    accepted: int
    rows: float | None

    @classmethod
    def of(cls, completions: Sequence[Completion], n: int = 1) -> "TokenCounts":
        """Count the tokens of completions, which are grouped by prompt, `n` for each."""
        sessions = [completion.session for completion in completions]
        return cls(
            prompt=sum(session.n_prompt for session in sessions[::n]),
            cached=sum(session.n_cached for session in sessions[::n]),
            output=sum(session.n_tokens for session in sessions),
            reasoning=sum(each.n_reasoning for each in completions if each.output is not None and each.output.reasoning),
            drafted=sum(session.n_drafted for session in sessions),
            accepted=sum(session.n_accepted for session in sessions),
            rows=_rows(sessions),
        )


def _rows(sessions: Sequence[Session]) -> float | None:
    if all(type(session.strategy.drafter) is Nothing for session in sessions):
        return None
    rows = [step.batch for session in sessions for step in session.steps if step.tokens]
    return round(sum(rows) / max(len(rows), 1), 2)
