"""Data of a finished completion, which its display reads."""

from dataclasses import dataclass, field

from dflash.decode import metrics
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Step, TokenLogprobs
from dflash.generation.parsers import ParsedOutput
from dflash.generation.timings import Timings, Usage
from dflash.generation.token_texts import TokenText


@dataclass(frozen=True, eq=False, repr=False)
class GenerationRecord:
    """Fields of a `dflash.generation.result.Generation`, which explains them, and numbers computed from them."""

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
    vocabulary: dict[int, TokenText]
    logprobs: list[TokenLogprobs] | None = None
    interventions: list[Intervention] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    draft_vocab_steps: dict[int, int] = field(default_factory=dict)
    output: ParsedOutput | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None

    @property
    def tokens_per_step(self) -> float:
        """Output tokens per step that produced tokens; 1 for plain decoding unless a recovery injects tokens."""
        n_steps = sum(bool(step.tokens) for step in self.steps)
        return len(self.tokens) / n_steps if n_steps else 0.0

    @property
    def acceptance(self) -> float | None:
        """Acceptance rate: accepted draft tokens over all draft tokens; None if nothing was drafted."""
        drafted = sum(step.drafted for step in self.steps)
        return sum(step.accepted for step in self.steps) / drafted if drafted else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Acceptance rate at each draft position; see `dflash.decode.metrics.counted`."""
        return metrics.shares(metrics.counted(self.steps))
