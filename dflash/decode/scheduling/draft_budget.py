"""How many draft tokens each session of a step gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import numpy as np

from dflash.decode.drafting.acceptance_rates import AcceptanceRates, ObservedRatio
from dflash.decode.drafting.drafter import Drafter, Nothing
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.scheduling.batch_plan import BatchPart
from dflash.decode.scheduling.step_costs import Floats, Ints, StepCosts
from dflash.decode.session import Session
from dflash.decode.step import Step
from dflash.model.attachments import Recent

_PERIOD = 8
"""Most steps between two choices while the same sessions run, and the last one was the same; a choice takes 0.1 ms."""

_GAIN = 1.02
"""Tokens a second of a new choice over those of the present one that are worth a change."""

_GROWTH = 4
"""Most rows of a step over those of any measured one."""

_TRIAL_SHARE = 0.01
"""Share of the time that trials may lose while sessions draft."""

_FIRST_SHARE = 0.003
"""Share of the time that trials may lose while none does and drafts may double the rate; less where they can gain less."""

_TRIAL_SESSIONS = 4
"""Most sessions that draft in a trial while none does: they show the acceptance, and rows of all would cost more."""

_TRIAL_LENGTH = 2
"""Steps of a trial; the time of the first one does not count."""

_TRIAL_STEPS = 16
"""Fewest steps between two trials."""

_HOPE = 1.05
"""Least speed-up with full acceptance that is worth a trial: steps of 64 sessions gain that much by no number of drafts."""

_TRIAL_WEIGHT = 5.0
"""Most drafts that earlier ones count as in a trial: after a change, ten trials of one session tell it."""

_REST = 256
"""Steps without drafts after which a session's own acceptance is forgotten, so that it drafts again."""

_POSITIONS = 15
"""Draft positions of drafters that do not say how many they fill."""

_LEVELS = np.array([0, 1, 3, 7, 15, 31, 63])
"""Depths that a GPU drafts: each has its own graph."""

_MOST_DRAFTERS = 64
"""Drafters whose acceptance is remembered: requests may name many."""


class DraftBudget:
    """Chooses the most draft tokens of each session, so that a step gives the most tokens for its time.

    A draft token is worth the probability that it and all before it are accepted; it costs a row of the forward, and its
    drafting. The tokens of all sessions are taken in the order of their worth, as many as make the expected tokens of the
    step over its expected seconds greatest. If that is none, no drafter is asked, and the step is one of plain decoding.
    Acceptance is learned for each drafter, by position, and as a factor for each session; `StepCosts` learns seconds. The
    first steps are plain, then larger ones are tried. Later other choices are tried: while sessions draft, no drafts, one
    draft token less for each session, and one more, as often as they lose a hundredth of the time; while none does, drafts
    of a few sessions in turn, as often as they lose 0.3 % of it, or less where drafts would gain little if every token were
    accepted; none that would gain next to nothing. Drafters that choose their own size are left alone.

    The tokens never change, but how many come in a step depends on measured times.

    on_gpu: draft depths are rounded up to few sizes, since each is captured.
    costs: seconds of steps; a GPU's start measures forwards for them.
    """

    def __init__(self, *, on_gpu: bool) -> None:
        self._on_gpu, self.costs = on_gpu, StepCosts(on_gpu=on_gpu)
        self._drafters = Recent[Drafter, _DrafterRecord](_MOST_DRAFTERS)
        self._records = WeakKeyDictionary[Session, _SessionRecord]()
        self._limits = WeakKeyDictionary[Session, int]()
        self._sessions: list[ref[Session]] = []
        self._is_planned = self._is_trial = self._had_drafts = False
        self._each = 0.0  # draft tokens of the step for each session that drafts
        self._period = 1
        self._pace = 0.0  # expected seconds of a token
        self._hope = 1.0  # what drafts would gain if all were accepted, over the present rate; at most 1
        self._credit, self._age, self._since_trial, self._n_trials = 0.0, 0, 0, 0
        self._drafts: list[tuple[Session, Step]] = []  # of the present step

    def limits(self, sessions: Sequence[Session], max_draft: int) -> Mapping[Session, int]:
        """Return the most draft tokens of sessions in the step that begins; those that are missing have no limit."""
        if not self._is_planned or self._sessions != list(map(ref, sessions)):
            self.plan(sessions, max_draft)
        self._is_planned = False
        return self._limits

    def plan(self, sessions: Sequence[Session], max_draft: int) -> Mapping[Session, int]:
        """Return the limits of the next step before it begins; `limits` returns them again if its sessions are the same."""
        self._is_planned = True
        self._age, self._since_trial, refs = self._age + 1, self._since_trial + 1, list(map(ref, sessions))
        period = _TRIAL_LENGTH if self._is_trial else self._period
        if self.costs.is_unsure and not (self._is_trial and not self._each):
            period = _PERIOD
        stays = self._age < period
        if stays and self._sessions == refs:
            return self._limits
        rested, self._age, self._is_trial, self._sessions = self._age, 0, False, refs
        self._limits.clear()
        drafting = {session: self._record(session) for session in sessions if _is_limited(session)}
        most = np.array([min(record.most, max_draft) for record in drafting.values()])
        if not most.any():
            return self._limits
        counts = self._choose(list(drafting.values()), most, len(sessions))
        for session, n, n_most in zip(drafting, counts.tolist(), most.tolist(), strict=True):
            drafting[session].rest(0 if n or not self._each else rested)
            if n < n_most or not n:
                self._limits[session] = n
        if self._on_gpu:
            self._set_depths(drafting, counts)
        return self._limits

    def learn(self, session: Session, step: Step) -> None:
        """Receive the result of one session's draft."""
        if step.drafted:
            self._drafts.append((session, step))

    def observe(self, parts: Sequence[BatchPart], seconds: float, waited: float) -> None:
        """Learn from a step that took `seconds`, after the results of its drafts; `waited` are those for the device.

        Its time does not count if it has prompts, or if the step before it had drafts and it has none, or the reverse: then
        drafters read what they have missed, and a GPU has launched nothing ahead.
        """
        groups: dict[_DrafterRecord, list[tuple[Session, Step]]] = {}
        for session, step in self._drafts:
            if (record := self._records.get(session)) is not None:
                groups.setdefault(record.drafter, []).append((session, step))
        self._drafts = []
        for drafter, group in groups.items():
            self._learn_rates(drafter, group)
        self._credit += (_TRIAL_SHARE if self._each else _FIRST_SHARE * self._hope) * seconds
        if groups and not self._each:  # a trial
            n_tokens = len(parts) + sum(step.accepted for group in groups.values() for _, step in group)
            self._credit -= max(seconds - n_tokens * self._pace, 0.0)
        had_drafts, self._had_drafts = self._had_drafts, bool(groups)
        if had_drafts == bool(groups) and parts and not any(part.n_prefill for part in parts):
            drafted = [
                (drafter, len(group), self._made(drafter, max(step.drafted for _, step in group)))
                for drafter, group in groups.items()
            ]
            self.costs.observe(parts[-1].stop, drafted, seconds, single=not drafted)
            if self._on_gpu and not drafted:
                self.costs.learn_host(len(parts), seconds - waited)

    def _made(self, drafter: _DrafterRecord, depth: int) -> int:
        """Return the depth that a drafter drafts if `depth` is used."""
        return int(drafter.rounded(np.array([depth]))[0]) if self._on_gpu else depth

    def _learn_rates(self, drafter: _DrafterRecord, group: Sequence[tuple[Session, Step]]) -> None:
        """Learn the acceptance of one drafter's drafts in this step."""
        rates = drafter.rates
        if not self._each:
            rates.forget(min(max(step.drafted for _, step in group), len(rates.expected)), _TRIAL_WEIGHT)
        above = np.cumsum([0.0, *(1.0 - rate for rate in rates.expected)]).tolist()
        accepted: dict[int, list[float]] = {}  # by length of the draft: at each position, and the number of drafts
        for session, step in group:
            n, nodes = min(step.drafted, len(rates.expected)), [row - 1 for row in step.rows[1:]]
            sums = accepted.setdefault(n, [0.0] * (n + 1))
            sums[n] += 1.0
            for node in nodes:
                if node < n:
                    sums[node] += 1.0
            if not isinstance(session.strategy.shape, Tree):
                self._records[session].rejections.learn(float(len(nodes) < n), above[min(len(nodes) + 1, n)])
            drafter.see(step.drafted, self._limits.get(session, inf))
        for n, sums in accepted.items():
            rates.learn(sums[:n], int(sums[n]))

    def _record(self, session: Session) -> _SessionRecord:
        """Return the record of a session, a new one if its drafter is new or another one."""
        found = self._records.get(session)
        if found is None or found.drafter.drafter != session.drafter:
            shape = session.strategy.shape
            named = shape.budget if isinstance(shape, Tree) else getattr(shape, "depth", None)
            drafter = self._drafters.recall(session.drafter)
            if drafter is None or len(drafter.rates.expected) < (named or 0):
                per_pass = getattr(getattr(session.drafter_state, "draft_model", None), "most_texts", inf)
                drafter = _DrafterRecord(session.drafter, max(named or 0, _POSITIONS), per_pass)
                self._drafters.keep(session.drafter, drafter)
            found = self._records[session] = _SessionRecord(drafter, named)
        return found

    def _choose(self, records: Sequence[_SessionRecord], most: Ints, n: int) -> Ints:
        """Return the draft tokens of each session that drafts, in a step of `n` sessions."""
        if not self.costs.is_known:
            return np.zeros(len(records), np.int64)
        survival = _survival(records, most)
        order = np.argsort(-survival, axis=None, kind="stable")[: np.count_nonzero(survival)]
        order = order[: max(_GROWTH * self.costs.most_rows - n, 0)]
        owner, depth = order // survival.shape[1], order % survival.shape[1] + 1
        tokens = n + np.append(0.0, np.cumsum(survival.ravel()[order]))
        seconds = self.costs.forwards(n + np.arange(len(order) + 1))
        seconds[0] = self.costs.plain(n)
        seconds = forwards = np.maximum(seconds, 1e-9)
        for drafter in dict.fromkeys(record.drafter for record in records):
            own = np.array([record.drafter is drafter for record in records])
            deepest = np.append(0, np.maximum.accumulate(np.where(own[owner], depth, 0)))
            if self._on_gpu:
                deepest = drafter.rounded(deepest)
            seconds = seconds + self.costs.drafting(drafter, int(own.sum()), deepest)
        seconds = np.maximum(seconds, 0.5 * forwards)
        rates = tokens / seconds
        size, before = int(rates.argmax()), min(round(self._each * len(records)), len(order))
        if rates[size] < _GAIN * rates[before]:
            size = before
        if size and not before:  # what was known of deeper positions may be old
            for drafter in {record.drafter for record in records}:
                drafter.rates.forget(len(drafter.rates.expected), _TRIAL_WEIGHT)
        self._period = min(2 * self._period, _PERIOD) if size == before else 1
        self._each, self._pace = size / len(records), float(seconds[size] / tokens[size])
        other = self._trial(size, len(records), tokens, seconds)
        if other and not size:
            chosen = (self._n_trials * _TRIAL_SESSIONS + np.arange(_TRIAL_SESSIONS)) % len(records)
            return np.where(np.isin(np.arange(len(records)), chosen), np.minimum(other // len(records), most), 0)
        return np.bincount(owner[: size if other is None else other], minlength=len(records))

    def _trial(self, size: int, n: int, tokens: Floats, seconds: Floats) -> int | None:
        """Return another size of all `n` sessions' drafts if one is to be tried now, else None."""
        other = (0, size - n, size + n)[self._n_trials % 3]
        if not size:
            whole = np.arange(n, len(tokens), n)
            other = int(whole[(tokens[whole] / seconds[whole]).argmax()]) if len(whole) else 0
            hopes = (tokens[0] + whole) * self._pace / seconds[whole]
            self._hope = float(np.clip(hopes.max(initial=0.0) - 1.0, 0.0, 1.0))
        never_pays = 0 < other < len(tokens) and (tokens[0] + other) * self._pace < _HOPE * seconds[other]
        if not 0 <= other < len(tokens) or other == size or never_pays:
            self._n_trials += 1
            return None
        share = 1.0 if size else min(_TRIAL_SESSIONS / n, 1.0)
        expected = tokens[0] + share * (tokens[other] - tokens[0])
        loss = _TRIAL_LENGTH * max(seconds[round(share * other)] - expected * self._pace, 0.0)
        is_paid, self._credit = self._credit >= loss, min(self._credit, loss)
        if not is_paid or self._since_trial < _TRIAL_STEPS:
            return None
        self._credit -= loss if size else 0.0  # that of a first draft is measured
        self._since_trial, self._is_trial, self._n_trials = 0, True, self._n_trials + 1
        return other

    def _set_depths(self, drafting: Mapping[Session, _SessionRecord], counts: Ints) -> None:
        """Let draft models on a GPU make no more positions than the step uses, the same number for all of a drafter."""
        depths: dict[_DrafterRecord, int] = {}
        for record, n in zip(drafting.values(), counts.tolist(), strict=True):
            depths[record.drafter] = max(depths.get(record.drafter, 0), n)
        for session, record in drafting.items():
            depth = self._made(record.drafter, depths[record.drafter])
            shape, drafter_state = session.strategy.shape or Chain(), cast(Any, session.drafter_state)
            if depth and isinstance(shape, Chain) and getattr(drafter_state, "on_device", False):
                drafter_state.shape = Chain(depth) if depth < record.most else shape


class _DrafterRecord:
    """Acceptance rates of a drafter at `n` positions, the most draft tokens that it makes, and the sessions of a pass."""

    def __init__(self, drafter: Drafter, n: int, per_pass: float) -> None:
        self.drafter, self.per_pass, self.rates = drafter, per_pass, AcceptanceRates(n)
        self._longest, self._is_known = 0, False

    @property
    def most(self) -> int:
        """Most draft tokens, as far as they are known."""
        n = len(self.rates.expected)
        return min(self._longest, n) if self._is_known else n

    def see(self, n: int, limit: float) -> None:
        """Learn the size of a draft that might have had `limit` tokens."""
        self._longest, self._is_known = max(self._longest, n), self._is_known or n < limit

    def rounded(self, depths: Ints) -> Ints:
        """Return the depths that a GPU drafts, for those that are used."""
        return np.minimum(_LEVELS[np.searchsorted(_LEVELS[:-1], depths)], np.maximum(self.most, depths))


class _SessionRecord:
    """Drafter of a session, draft tokens that its shape names, its own rejections relative to those of the drafter."""

    def __init__(self, drafter: _DrafterRecord, named: int | None) -> None:
        self.drafter, self._named, self.rejections, self._n_rested = drafter, named, ObservedRatio(), 0

    @property
    def most(self) -> int:
        """Most draft tokens, as far as they are known."""
        return min(self._named or self.drafter.most, self.drafter.most)

    def rest(self, n: int) -> None:
        """Count `n` steps without drafts while others drafted; 0 if the session drafts."""
        self._n_rested = self._n_rested + n if n else 0
        if self._n_rested >= _REST:
            self.rejections, self._n_rested = ObservedRatio(), 0


def _survival(records: Sequence[_SessionRecord], most: Ints) -> Floats:
    """Return the probability that each draft token and all before it are accepted (S, N); 0 beyond the most of a session."""
    n = int(most.max())
    rejected = np.ones((len(records), n))
    for row, record in zip(rejected, records, strict=True):
        rates = record.drafter.rates.expected[:n]
        row[: len(rates)] -= rates
    factors = np.array([record.rejections.factor for record in records])
    survival = np.cumprod(np.maximum(1.0 - factors[:, None] * rejected, 1e-3), axis=1)
    return np.where(np.arange(n) < most[:, None], survival, 0.0)


def _is_limited(session: Session) -> bool:
    return type(session.drafter) is not Nothing and not getattr(session.drafter, "chooses_size", False)
