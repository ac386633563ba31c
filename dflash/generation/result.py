"""What came of a prompt: text, tokens, and how they were made."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dflash.decode import metrics as acceptance
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session, Step, TokenLogprobs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Usage(NamedTuple):
    """Tokens in and out; the end token counts."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return sum(self)


class Timings(NamedTuple):
    """Where the time went, in seconds.

    Parameters
    ----------
    queued : float
        Waiting for a place in the loop.
    first_token : float
        From the first chunk of the prompt to the first token.
    decode : float
        From the first to the last token.
    prompt_rate : float
        Prompt tokens read a second.
    decode_rate : float
        Tokens a second after the first step.
    """

    queued: float
    first_token: float
    decode: float
    prompt_rate: float
    decode_rate: float

    @classmethod
    def of(cls, session: Session) -> "Timings":
        """Take the times of a session; those that never were are 0."""
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


@dataclass(frozen=True, eq=False, repr=False)
class Generation:
    """A finished text. Shows itself in a notebook; `print` gives the text.

    Parameters
    ----------
    prompt : list of int
        Ids that were continued.
    tokens : list of int
        New ids, with the end token or the one that completed a stop string.
    text : str
        Their text, up to the end or the stop string, without control tokens.
    finish_reason : str
        ``"stop"``, ``"length"``, or ``"cancelled"`` where the caller broke off.
    seed : int
        Gives the same text again, also where none was asked for.
    sampling : Sampling
        How tokens were picked.
    strategy : Strategy
        How they were guessed.
    usage : Usage
        Tokens in and out.
    timings : Timings
        Where the time went.
    steps : list of Step
        What the loop did, prompt chunks first.
    pieces : list of str
        The text that each step made certain.
    logprobs : list of TokenLogprobs or None
        One a token, where they were asked for.
    interventions : list of Intervention
        What recoveries did.
    warnings : list of str
        What was found wrong with how it was written.
    draft_vocab_steps : dict of int to int
        In how many steps a block draft or MTP head on a GPU guessed from so many tokens of a large vocabulary: the first two
        or three fifths while the text kept to them, or all. Beside other texts it makes logits of as many as any of them
        needs.
    """

    prompt: list[int]
    tokens: list[int]
    text: str
    finish_reason: str
    seed: int
    sampling: Sampling
    strategy: Strategy
    usage: Usage
    timings: Timings
    steps: list[Step]
    pieces: list[str]
    logprobs: list[TokenLogprobs] | None = None
    interventions: list[Intervention] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    draft_vocab_steps: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, session: Session, pieces: Sequence[str]) -> "Generation":
        """Sum up a session whose text came in `pieces`."""
        return cls(
            prompt=list(session.prompt_ids),
            tokens=session.output_ids,
            text="".join(pieces),
            finish_reason=session.finish_reason or "cancelled",
            seed=session.seed,
            sampling=session.sampling,
            strategy=session.strategy,
            usage=Usage(session.n_prompt, session.n_tokens),
            timings=Timings.of(session),
            steps=session.steps[: len(pieces)],
            pieces=list(pieces),
            logprobs=list(session.logprobs) if session.sampling.logprobs is not None else None,
            interventions=list(session.interventions),
            warnings=list(session.warnings),
            draft_vocab_steps=dict(sorted(session.draft_vocab_steps.items())),
        )

    @property
    def tokens_per_step(self) -> float:
        """New tokens over the steps that made them; 1 for plain decoding, but for what recoveries put in."""
        n_steps = sum(bool(step.tokens) for step in self.steps)
        return len(self.tokens) / n_steps if n_steps else 0.0

    @property
    def acceptance(self) -> float | None:
        """Share of the guessed tokens that were right; None if nothing was guessed."""
        drafted = sum(step.drafted for step in self.steps)
        return sum(step.accepted for step in self.steps) / drafted if drafted else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of the guesses that were right at each position after the last token; see
        `dflash.decode.metrics.counted`.
        """
        return acceptance.shares(acceptance.counted(self.steps))

    def plot(self) -> "Figure":
        """Draw tokens and milliseconds of each step.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from dflash.generation.display import plot

        return plot(self)

    def as_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "seed": self.seed,
            "strategy": repr(self.strategy),
            "usage": {**self.usage._asdict(), "total_tokens": self.usage.total_tokens},
            "timings": self.timings._asdict(),
            "steps": sum(bool(step.tokens) for step in self.steps),
            "tokens_per_step": self.tokens_per_step,
            "acceptance": self.acceptance,
            "acceptance_by_position": self.acceptance_by_position,
            "draft_vocab_steps": {str(n): steps for n, steps in self.draft_vocab_steps.items()},
            "interventions": [asdict(one) for one in self.interventions],
            "warnings": self.warnings,
            **({} if self.logprobs is None else {"logprobs": [_logprob(entry) for entry in self.logprobs]}),
        }

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"Generation({shown!r}, {len(self.tokens)} tokens, {self.finish_reason!r})"

    def _repr_html_(self) -> str:
        from dflash.generation.display import as_html

        return as_html(self)


def _logprob(entry: TokenLogprobs) -> dict[str, Any]:
    return {"token": entry.token, "logprob": entry.logprob, "top": [list(pair) for pair in entry.top]}
