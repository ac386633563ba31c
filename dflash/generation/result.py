"""Result of a request: text, tokens, steps and timings."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dflash.decode.session import Session, TokenLogprobs
from dflash.generation.parsers import ParsedOutput, ToolCall
from dflash.generation.record import GenerationRecord
from dflash.generation.timings import Timings, Usage
from dflash.generation.token_texts import token_texts
from dflash.json_types import JsonObject
from dflash.model.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Generation(GenerationRecord):
    """A finished completion. A notebook displays it as HTML; `print` writes the text.

    Parameters
    ----------
    prompt : list of int
        Token ids of the prompt.
    tokens : list of int
        Output token ids, including the end token or the token that completed a stop string.
    text : str
        Output text without control tokens, up to the end token or the stop string.
    finish_reason : str
        ``"stop"``, ``"tool_calls"`` if the model stopped by itself and has called tools, ``"length"``, or ``"cancelled"``
        if the caller cancelled the request.
    seed : int
        Seed that reproduces the text; drawn at random if the request gave none.
    sampling : Sampling
        Sampling parameters.
    strategy : Strategy
        Drafter, draft shape and recoveries.
    usage : Usage
        Token counts.
    timings : Timings
        Durations and rates.
    steps : list of Step
        Records of all steps, prompt chunks first.
    pieces : list of str
        Text that each step added.
    vocabulary : dict of int to TokenText
        Text of each output and draft token.
    logprobs : list of TokenLogprobs or None
        One entry per output token, if requested.
    prompt_logprobs : list of TokenLogprobs or None
        One entry per prompt token but the first, with its ``rank``, if requested.
    interventions : list of Intervention
        Changes that recoveries made.
    warnings : list of str
        Problems found during decoding, as a drafter whose tokens are never accepted.
    draft_vocab_steps : dict of int to int
        Draft vocabulary size to number of steps that used it. Only for a block draft or MTP head on a GPU whose target has
        a large vocabulary: the first two or three fifths while the output stays within them, else all. Sequences of one
        batch share the largest size that any of them needs.
    output : ParsedOutput or None
        Content, reasoning and tool calls that `text` consists of; None if the text was not parsed.
    """

    @classmethod
    def of(
        cls, session: Session, pieces: Sequence[str], tokenizer: Tokenizer, output: ParsedOutput | None = None
    ) -> "Generation":
        """Build the result of a session from the text that its steps added, and what a parser read in it."""
        steps = session.steps[: len(pieces)]
        finish_reason = session.finish_reason or "cancelled"
        if finish_reason == "stop" and output is not None and output.tool_calls:
            finish_reason = "tool_calls"
        return cls(
            prompt=list(session.prompt_ids),
            tokens=session.output_ids,
            text="".join(pieces),
            finish_reason=finish_reason,
            seed=session.seed,
            sampling=session.sampling,
            strategy=session.strategy,
            usage=Usage(session.n_prompt, session.n_tokens, session.n_cached),
            timings=Timings.of(session),
            steps=steps,
            pieces=list(pieces),
            vocabulary=token_texts(steps, tokenizer),
            logprobs=list(session.logprobs) if session.sampling.logprobs is not None else None,
            prompt_logprobs=None if session.prompt_logprobs is None else list(session.scored_prompt),
            interventions=list(session.interventions),
            warnings=list(session.warnings),
            draft_vocab_steps=dict(sorted(session.draft_vocab_steps.items())),
            output=output,
        )

    @property
    def content(self) -> str:
        """Visible text: `text` without reasoning, its tags and tool calls."""
        return self.text if self.output is None else self.output.content

    @property
    def reasoning(self) -> str:
        """Reasoning; empty if there is none."""
        return "" if self.output is None else self.output.reasoning

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Tool calls in the order in which the model wrote them."""
        return [] if self.output is None else list(self.output.tool_calls)

    def plot(self) -> "Figure":
        """Plot the tokens and milliseconds of each step."""
        from dflash.generation.display import plot

        return plot(self)

    def as_dict(self) -> JsonObject:
        """Return the result as JSON values."""
        return {
            "text": self.text,
            **({} if self.output is None else asdict(self.output)),
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
            **_as_json("logprobs", self.logprobs),
            **_as_json("prompt_logprobs", self.prompt_logprobs),
        }

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"Generation({shown!r}, {len(self.tokens)} tokens, {self.finish_reason!r})"

    def _repr_html_(self) -> str:
        from dflash.generation.display import as_html

        return as_html(self)


def _as_json(name: str, entries: Sequence[TokenLogprobs] | None) -> JsonObject:
    if entries is None:
        return {}
    return {
        name: [{"token": each.token, "logprob": each.logprob, "top": [list(pair) for pair in each.top]} for each in entries]
    }
