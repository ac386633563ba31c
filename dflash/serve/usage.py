"""Token counts of a response."""

from collections.abc import Sequence
from dataclasses import dataclass

from dflash.generation.completion import Completion


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token counts of all completions of a response.

    Parameters
    ----------
    prompt : int
        Prompt tokens; a prompt counts once for all its choices.
    cached : int
        Prompt tokens that came from the prefix cache.
    output : int
        Output tokens, reasoning and end tokens included.
    reasoning : int
        Output tokens of reasoning, with the one that closes it. The tokens of a call that ends reasoning do not count.
    drafted, accepted : int
        Draft tokens, and those that became output.
    """

    prompt: int
    cached: int
    output: int
    reasoning: int
    drafted: int
    accepted: int

    @classmethod
    def of(cls, completions: Sequence[Completion], n: int = 1) -> "TokenCounts":
        """Count the tokens of completions, which are grouped by prompt, `n` for each."""
        sessions = [completion.session for completion in completions]
        return cls(
            prompt=sum(session.n_prompt for session in sessions[::n]),
            cached=sum(session.n_cached for session in sessions[::n]),
            output=sum(session.n_tokens for session in sessions),
            reasoning=sum(map(_n_reasoning, completions)),
            drafted=sum(session.n_drafted for session in sessions),
            accepted=sum(session.n_accepted for session in sessions),
        )


def _n_reasoning(completion: Completion) -> int:
    return completion.n_reasoning if completion.output is not None and completion.output.reasoning else 0
