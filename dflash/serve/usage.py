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
        Output tokens up to and including the end of reasoning. An output that ends without it has only reasoning, up to its
        end token.
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
    output, think = completion.output, completion.session.special_tokens.think
    if output is None or not output.reasoning or think is None:
        return 0
    ids = completion.session.output_ids
    return ids.index(think[1]) + 1 if think[1] in ids else len(ids) - (completion.session.stop_token is not None)
