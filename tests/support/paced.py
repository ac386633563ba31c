"""A model and drafters with a simulated clock."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from oracles import DraftingState, naive
from toy import Toy

from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.drafting.shapes import Chain
from dflash.decode.sampling.params import Sampling

N = 80
ROWS = (1, 2, 4, 8, 16, 32, 64)
FLAT = (8.0, 8.1, 8.2, 8.4, 8.8, 11.0, 16.0)
"""Milliseconds of a forward where memory is the limit, as on a GPU."""
STEEP = (8.5, 10.0, 13.0, 17.0, 25.0, 40.0, 75.0)


class Clock:
    """Other work on the machine makes all so many times slower, for 0.15 s of each 0.3 s."""

    slower, _now = 1.0, 0.0

    @property
    def now(self):
        return self._now

    @now.setter
    def now(self, value):
        self._now += (value - self._now) * (self.slower if self._now % 0.3 > 0.15 else 1.0)

    def __call__(self):
        return self.now


class Timed(Toy):
    """Advance the clock by the latency of the curve, with noise."""

    def __init__(self, clock, curve, **sizes):
        super().__init__(slots=4, **sizes)
        self.clock, self.curve = clock, curve
        self.rng = np.random.default_rng(3)

    def forward(self, spans, *, capture=()):
        rows = sum(len(span.tokens) for span in spans)
        self.clock.now += 1e-3 * np.interp(rows, ROWS, self.curve) * np.exp(self.rng.normal(0, 0.05))
        return super().forward(spans, capture=capture)


@dataclass(frozen=True)
class Paced(Drafter):
    """Each draft token is accepted with probability `p` if those before it are; a draft of n takes ``base + each n`` ms.

    It may give scores for its tokens, which are correct but underconfident.
    """

    p: float
    base: float
    each: float
    most: int = 15
    says: bool = False

    def start(self, session, model, snapshot=None):
        return _Paced(self, session, model)

    def propose(self, drafter_states, max_drafts):
        drafts = [
            drafter_state.draft_of(max_draft) for drafter_state, max_draft in zip(drafter_states, max_drafts, strict=True)
        ]
        drafter_states[0].model.clock.now += 1e-3 * (self.base + self.each * max(map(len, drafts)))
        return drafts


class _Paced(DraftingState):
    def __init__(self, drafter, session, model):
        super().__init__(drafter, session)
        self.model, self.shape = model, session.strategy.shape or Chain()

    def draft_of(self, room):
        n, _ = self.shape.wants(self.drafter.most, room)
        text, start = written(*self.session.token_ids[:3]), len(self.session.token_ids)
        right = np.random.default_rng([start, *text[:2]]).random(n) < self.drafter.p
        tokens = [(token + 1 - sure) % 13 for token, sure in zip(text[start : start + n], right, strict=True)]
        scores = np.log(np.where(right, 0.9, 0.2)).astype(np.float32)
        return Draft(tokens, scores=scores if self.drafter.says else None)


GOOD, WEAK, CHEAP, USELESS = Paced(0.9, 5.5, 0.2), Paced(0.5, 5.5, 0.2), Paced(0.75, 0.2, 1.3, 6), Paced(0.05, 3.0, 0.5)


@cache
def written(*prompt):
    """A prompt, and what comes of it, with a little more than is asked for."""
    return [*prompt, *naive(Toy(), prompt, Sampling(), N + 20)]
