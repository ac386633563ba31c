"""Protocol of a generation for its display, which `dflash.generation.result.Generation` imports."""

from typing import Protocol

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.step import Step
from dflash.generation.timings import Timings, Usage
from dflash.generation.token_texts import TokenText


class GenerationView(Protocol):
    """Members of a `Generation` that its display reads; the meaning of each stands there."""

    text: str
    finish_reason: str
    seed: int
    strategy: Strategy
    usage: Usage
    timings: Timings
    steps: list[Step]
    pieces: list[str]
    vocabulary: dict[int, TokenText]
    interventions: list[Intervention]
    warnings: list[str]
    draft_vocab_steps: dict[int, int]
    tokens_per_step: float
    acceptance: float | None
    acceptance_by_position: list[float]
