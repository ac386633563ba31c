"""Replay of recorded drafts through the adaptive drafter, with the prices of a device in place of a clock.

A recording holds for every position of a text how many draft tokens of each drafter would be accepted there. So any order of
choices can be replayed exactly, with no model. `benchmarks/adaptive_replay.py` records and prints tables.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from packed import packed_text

from dflash.decode.drafters.adaptive.cost_model import CostModel
from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.adaptive.session import AdaptiveState
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import NO_DRAFT, Drafter, Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.step import Step

RECORDED = Path(__file__).parents[1] / "data" / "adaptive" / "acceptances.json.xz"
DRAFTED = {"dflash": 15, "dflash-tree": 22, "mtp": 7, "lookup": 0}
MAX_TOKENS = 64
REJECTED = 1 << 20


@dataclass(frozen=True)
class Prices:
    """Milliseconds of forwards by rows, and beside the forward: a base and a price for each draft token.

    `sizes` are draft sizes that a device uses; any size if None.
    """

    forwards: dict
    plain: float
    beside: dict
    sizes: tuple | None = None

    @property
    def table(self):
        return [0.0, *np.interp(range(1, 129), list(self.forwards), list(self.forwards.values())).tolist()]

    def extra(self, name, n):
        base, each = self.beside[name]
        return base + each * n


PRICES = {
    # an H200: benchmarks/results/gpu-speculation.md and gpu-models.md; chains with a 4-bit draft; lookup waits for the host
    "27B": Prices(
        {1: 5.09, 2: 5.25, 4: 5.26, 5: 5.5, 8: 5.5, 9: 6.43, 16: 6.43, 17: 8.01, 24: 8.01, 25: 9.4, 32: 9.4, 64: 18.2},
        0.08,
        {"dflash": (0.77, 0.0), "mtp": (0.08, 0.21), "lookup": (0.3, 0.0)},
        (1, 3, 7, 15),
    ),
    # the demo on two cores of a Xeon
    "demo": Prices(
        {1: 4.0, 2: 4.4, 4: 5.4, 5: 6.2, 8: 8.0, 16: 14.0, 32: 24.5, 64: 47.0},
        0.1,
        {"dflash": (2.5, 0.22), "mtp": (0.3, 1.08), "lookup": (0.1, 0.0)},
    ),
}


@dataclass(frozen=True)
class Replayed(Drafter):
    """A drafter of a recording, by name."""

    name: str
    instant: bool = False

    def propose(self, drafter_states, max_drafts):
        return [part.draft(max_draft) for part, max_draft in zip(drafter_states, max_drafts, strict=True)]


class _Part:
    capture = ()

    def __init__(self, session, drafts, *, scored):
        self.session, self.drafts, self.scored, self.shape = session, drafts, scored, Chain()

    def draft(self, max_draft):
        at = len(self.session.token_ids) - 1
        accepted, n, scores = self.drafts[at] if at < len(self.drafts) else (0, 0, None)
        n = min(n, max_draft, self.shape.depth or n)
        if n < 1:
            return EMPTY
        tokens = [at + 1 + i if i < accepted else REJECTED for i in range(n)]
        return Draft(tokens, scores=np.array(scores[:n], np.float32) if self.scored else None)

    def observe(self, step, out, rows):
        pass


def recorded(path=RECORDED):
    """Return the texts of each set: a length, and for each drafter and position (accepted, drafted, scores)."""
    path = Path(path)
    sets = json.loads(packed_text(path) if path.suffix == ".xz" else path.read_text())
    for texts in sets.values():
        for text in texts:
            text["drafts"] = {name: [_entry(name, each) for each in found] for name, found in text["drafts"].items()}
    return sets


def _entry(name, found):
    if isinstance(found, int):
        return found, DRAFTED[name], None
    if name != "lookup":
        return tuple(found)
    # prompt lookup assumes that the token after a match of length L differs with probability 1 / (L + 1)
    accepted, n, length = found
    return accepted, n, [-np.log1p(1 / (length + i)) for i in range(n)]


def fixed_ms(texts, prices, name, most):
    """Return the milliseconds of all texts with a fixed strategy; `name` is None for plain decoding."""
    table, total = prices.table, 0.0
    for text in texts:
        at = 0
        while at < text["n"]:
            accepted, n, _ = text["drafts"][name][at] if name else (0, 0, None)
            n = min(n, most, MAX_TOKENS - at - 1)
            total += table[1 + n] + (prices.extra(name.partition("-")[0], n) if name else prices.plain)
            at += 1 + min(accepted, n)
    return total


def adaptive_ms(texts, prices, names, *, on_host):
    """Return the milliseconds of all texts with the adaptive drafter, which begins without any experience.

    On a GPU it sees no scores, and chooses before it knows the result of the step before.
    """
    strategies = [Strategy(Replayed(name, name == "lookup"), Chain(most)) for name, most in names.items()]
    costs = CostModel(strategies, prices.table, on_host=on_host)
    costs.plain = prices.plain
    for option in costs.options:
        used = [n for n in range(option.most + 1) if prices.sizes is None or n in (0, *prices.sizes, option.most)]
        option.extra = [prices.extra(option.drafter.name, n) if n in used else float("inf") for n in range(option.most + 1)]
    adaptive = Adaptive(*strategies)
    return sum(_text_ms(text, prices, costs, adaptive, on_host=on_host) for text in texts)


def _text_ms(text, prices, costs, adaptive, *, on_host):
    session = SimpleNamespace(token_ids=[0], forced_ids=(), max_length=MAX_TOKENS + 1)
    session.sampler = SimpleNamespace(params=SimpleNamespace(scale=None))
    parts = [_Part(session, text["drafts"][each.name], scored=on_host or each.instant) for each in costs.drafters]
    state, table, total, launched = AdaptiveState(costs, session, parts), prices.table, 0.0, False
    while len(session.token_ids) <= text["n"]:
        room = MAX_TOKENS - len(session.token_ids)
        [draft] = [EMPTY] if launched else adaptive.propose([state], [room])
        beside = prices.extra(state.choice[0].drafter.name, len(state.draft)) if state.choice[0] else prices.plain
        forward = table[1 + len(draft)]
        total += forward + beside
        accepted = sum(token < REJECTED for token in draft.tokens.tolist())
        at = len(session.token_ids)
        step = Step(
            list(range(at, at + accepted + 1)),
            drafted=len(draft),
            accepted=accepted,
            batch=1 + len(draft),
            propose=1e-3 * beside,
            forward=1e-3 * forward,
            rows=range(accepted + 1),
        )
        launched = not on_host and room > 1 and adaptive.plan_next([state], [draft]) == [NO_DRAFT] and not len(draft)
        session.token_ids += step.tokens
        state.observe(Step([], batch=1) if launched else step, None, list(step.rows))
    return total
