"""Measurements of one strategy."""

import statistics
from dataclasses import dataclass, field

from dflash.decode import metrics as acceptance
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.session import Step
from dflash.generation.result import Generation
from dflash.json_types import JsonObject

PARTS = ("draft", "forward", "verify", "host")
"""Parts of a step: drafting, the forward of the target, verification, and all other host work of the loop."""


@dataclass(eq=False)
class Row:
    """Measurements of one strategy.

    rounds: for each round, summed over its prompts: output tokens after the first step, and seconds for them.
    differs: names of prompts whose output differs from the first strategy's, with the index of the first differing token.
    """

    name: str
    strategy: Strategy
    generations: list[Generation] = field(default_factory=list)
    rounds: list[tuple[int, float]] = field(default_factory=list)
    differs: list[tuple[str, int]] = field(default_factory=list)

    def add(self, round_: int, generation: Generation) -> None:
        """Add the result of one request."""
        if len(self.rounds) == round_:
            self.rounds.append((0, 0.0))
        n, seconds = self.rounds[round_]
        self.rounds[round_] = (n + sum(len(step.tokens) for step in timed(generation)), seconds + generation.timings.decode)
        self.generations.append(generation)

    def is_judged(self, generation: Generation) -> bool:
        """Return True if the verifier promises the first strategy's tokens for a request."""
        return self.strategy.verifier.start(generation.seed, greedy=generation.sampling.greedy) is None

    @property
    def rates(self) -> list[float]:
        """Output tokens per second of each round; 0 if every request ended in its first step."""
        return [n / seconds if seconds else 0.0 for n, seconds in self.rounds]

    @property
    def rate(self) -> float:
        """Mean of `rates`, tokens per second."""
        return statistics.mean(self.rates)

    @property
    def deviation(self) -> float:
        """Standard deviation of `rates`; 0 for one round."""
        return statistics.stdev(self.rates) if len(self.rounds) > 1 else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Output tokens per step that produced tokens, over all requests."""
        n_steps = sum(bool(step.tokens) for one in self.generations for step in one.steps)
        return sum(len(one.tokens) for one in self.generations) / n_steps if n_steps else 0.0

    @property
    def drafted(self) -> int:
        """Number of draft tokens of all requests."""
        return sum(step.drafted for one in self.generations for step in one.steps)

    @property
    def accepted(self) -> int:
        """Number of accepted draft tokens of all requests; the others were rejected."""
        return sum(step.accepted for one in self.generations for step in one.steps)

    @property
    def acceptance(self) -> float | None:
        """Acceptance rate: accepted draft tokens over all draft tokens; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Acceptance rate at each draft position; see `dflash.decode.metrics.counted`."""
        return acceptance.shares(acceptance.counted(step for one in self.generations for step in one.steps))

    @property
    def shares(self) -> dict[str, float]:
        """Share of the measured time of each of `PARTS`."""
        total = sum(seconds for _, seconds in self.rounds)
        steps = [step for one in self.generations for step in timed(one)]
        known = [sum(getattr(step, part) for step in steps) for part in ("propose", "forward", "verify")]
        parts = [*known, max(total - sum(known), 0.0)]
        return {name: part / total if total else 0.0 for name, part in zip(PARTS, parts, strict=True)}

    @property
    def first_token(self) -> float:
        """Median seconds to the first token."""
        return statistics.median(one.timings.first_token for one in self.generations)

    def as_dict(self) -> JsonObject:
        """JSON values only."""
        return {
            "name": self.name,
            "strategy": repr(self.strategy),
            "tokens_per_second": self.rate,
            "deviation": self.deviation,
            "rounds": self.rates,
            "tokens_per_step": self.tokens_per_step,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance": self.acceptance,
            "acceptance_by_position": self.acceptance_by_position,
            "shares": self.shares,
            "first_token_seconds": self.first_token,
            "guarantee": self.strategy.verifier.guarantee,
            "same_text": not self.differs,
            "differs": [{"prompt": prompt, "token": token} for prompt, token in self.differs],
            "warnings": sorted({each for one in self.generations for each in one.warnings}),
        }


def seconds_of(step: Step) -> float:
    """Return the seconds of a step, those of the other sequences in it included."""
    return step.propose + step.forward + step.verify + step.commit


def timed(generation: Generation) -> list[Step]:
    """Return the steps after the first one that produced tokens: those that `Timings.decode` spans."""
    wrote = next((i for i, step in enumerate(generation.steps) if step.tokens), len(generation.steps))
    return generation.steps[wrote + 1 :]
