"""Counts of tokens, drafts and durations over all steps of an engine."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from time import perf_counter

from dflash.decode.engine import Event
from dflash.decode.session import Session

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds of one step: 1 ms on a large GPU, seconds for a prompt chunk on a CPU."""

_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
"""Seconds of a request: an agent's prompt on a CPU takes minutes."""

_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096)
"""Rows of a forward: those that a GPU rounds up to, then chunks of prompts."""

_BATCH = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Sequences that a step advances."""


class BucketCounts:
    """Counts of values by bucket. bounds: upper bounds of the buckets, rising; a last bucket holds all larger values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value in the first bucket whose bound is at least `value`."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class EngineCounters:
    """Counts what the steps of an engine produced; an observer of `EngineThread`.

    Called in the engine thread alone. Other threads may read the attributes at any time; a value may then be a step ahead
    of another one.

    prompt_tokens, cached_tokens: prompt tokens of sequences that reached their first token, and those of them that came from
        the prefix cache.
    drafts, drafted: steps of a sequence that had draft tokens, and these tokens.
    recoveries: interventions by recovery and action, counted when the sequence ends.
    step_seconds, batch, rows: duration of a step, the number of sequences that emitted tokens in it, and the rows of its
        forward.
    first_token_seconds, between_seconds, queue_seconds, request_seconds: time from submission to the first token, between
        two steps of a sequence that emit tokens, from submission to the start of the prefill, and from submission to the
        end.
    """

    def __init__(self) -> None:
        self.prompt_tokens = self.cached_tokens = self.output_tokens = self.drafts = self.drafted = 0
        self.accepted: Counter[int] = Counter()
        self.finished: Counter[str] = Counter()
        self.recoveries: Counter[tuple[str, str]] = Counter()
        self.step_seconds, self.batch, self.rows = BucketCounts(_SHORT), BucketCounts(_BATCH), BucketCounts(_ROWS)
        self.between_seconds = BucketCounts(_SHORT)
        self.first_token_seconds, self.queue_seconds, self.request_seconds = (BucketCounts(_LONG) for _ in range(3))
        self._emitted_at: dict[Session, float] = {}

    def __call__(self, events: Sequence[Event], seconds: float) -> None:
        """Count one step of the engine, which took `seconds`."""
        now, n_emitting = perf_counter(), 0
        for session, step in events:
            n_tokens = len(step.tokens)
            if n_tokens:
                n_emitting += 1
                self.output_tokens += n_tokens
                before = self._emitted_at.get(session)
                if before is None:
                    self._begin(session, now)
                else:
                    self.between_seconds.add(now - before)
                self._emitted_at[session] = now
            if step.drafted:
                self.drafts += 1
                self.drafted += step.drafted
                self.accepted[step.accepted] += 1
            if step.finish is not None:
                self._end(session, step.finish, now)
        self.step_seconds.add(seconds)
        self.batch.add(n_emitting)
        if rows := max((step.batch for _, step in events), default=0):
            self.rows.add(rows)

    def _begin(self, session: Session, now: float) -> None:
        self.prompt_tokens += session.n_prompt
        self.cached_tokens += session.n_cached
        if session.added_at is not None:
            self.first_token_seconds.add(now - session.added_at)
            self.queue_seconds.add((session.started_at or now) - session.added_at)

    def _end(self, session: Session, reason: str, now: float) -> None:
        self._emitted_at.pop(session, None)
        self.finished[reason] += 1
        self.recoveries.update((each.recovery, each.action) for each in session.interventions)
        if session.added_at is not None:
            self.request_seconds.add(now - session.added_at)
