"""Benchmarks of one model: token rates, time shares of ops, cost of wider forwards."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dflash.decode.engine import Engine
from dflash.decode.session import Session, Step
from dflash.errors import RequestError
from dflash.json_types import JsonObject
from dflash.kernels.profile import profile
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span
from dflash.model.state.sequence_state import Snapshot, State

if TYPE_CHECKING:
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.model import Model

DEPTH = 128
"""Context tokens before the forwards whose costs are compared."""

FORWARDS = (1, 2, 4, 8, 16, 23, 32, PENDING)
"""Tokens of the forwards whose costs are compared; 23 is a draft tree of 22 nodes and its root."""

SECONDS = 3.0
"""Seconds of runs after which a measurement is not repeated any more."""


class Bench:
    """Measure one model on random tokens. model: model with room for two sequences; no other thread uses it meanwhile."""

    def __init__(self, model: "Model | DeviceModel", *, repeat: int) -> None:
        self.model, self.repeat = model, repeat
        self._draws = np.random.default_rng(0)
        self._ops: dict[str, float] = {}
        self._prefix: Snapshot | None = None

    def reading(self, n: int) -> JsonObject:
        """Measure prefill of `n` tokens in tokens per second, after a warm-up of at most two chunks."""
        self.read(min(n, 2 * self.model.prefill_chunk))
        return self._rate(n, lambda: self.read(n))

    def writing(self, n: int, depth: int) -> JsonObject:
        """Measure decode of `n` tokens after `depth` others: tokens per second, and host microseconds per step."""
        self.write(min(n, 16), depth)
        steps: list[Step] = []
        rate = self._rate(n, lambda: self.write(n, depth, steps))
        means = {part: statistics.mean(getattr(step, part) for step in steps) for part in ("propose", "verify", "commit")}
        return {**rate, "depth": depth, "host_us": {part: mean * 1e6 for part, mean in means.items()}}

    def shares(self, run: Callable[[], float]) -> dict[str, float]:
        """Return the share of time of each op in one more `run`; ``other`` is time outside of ops."""
        with profile() as self._ops:
            total = run()
        shares = {op: took / total for op, took in sorted(self._ops.items(), key=lambda item: -item[1])}
        return {**shares, "other": max(0.0, 1 - sum(shares.values()))}

    def read(self, n: int) -> float:
        """Return the seconds of a prefill of `n` tokens, in the chunks of the engine."""
        with closing(self.model.state()) as state:
            start = self._start()
            self._chunks(state, n)
            self.model.finish()
            return perf_counter() - start

    def write(self, n: int, depth: int, steps: list[Step] | None = None) -> float:
        """Return the seconds to decode `n` tokens after `depth` others: one sequence, greedy, through the engine.

        The context is prefilled before, once for all runs of one depth. Steps that produced tokens are added to `steps`.
        """
        if depth + 1 + n > self.model.config.context:
            raise RequestError(f"{depth + 1 + n} tokens don't fit the context of {self.model.config.context}")
        session = Session(self._ids(depth + 1).tolist(), max_tokens=n, prefix=self._read_before(depth))
        start = self._start()
        for step in Engine(self.model, chunk=self.model.prefill_chunk).stream(session):
            if step.tokens and steps is not None:
                steps.append(step)
        return perf_counter() - start

    def forward_costs(self, sizes: Sequence[int] = FORWARDS) -> list[JsonObject]:
        """Measure a forward of pending tokens with their logits, for those numbers of tokens that may be pending."""
        with closing(self.model.state()) as state:
            self._chunks(state, DEPTH)
            costs = [(n, *self._forward(state, n)) for n in sizes if n <= self.model.config.pending]
        launches = getattr(self.model, "launches", {})
        found = []
        for n, took, host in costs:
            cost = {"tokens": n, "ms": took * 1e3, "relative": took / costs[0][1], "host_us": host * 1e6}
            bucket = min((size for size in launches if size >= n), default=None)
            found.append(cost if bucket is None else {**cost, "launches": launches[bucket]})
        return found

    def close(self) -> None:
        """Free the prefilled context."""
        if self._prefix is not None:
            self._prefix.close()
            self._prefix = None

    def _rate(self, n: int, run: Callable[[], float]) -> JsonObject:
        took: list[float] = []
        while not took or (len(took) < self.repeat and sum(took) < SECONDS):
            took.append(run())
        rates = [n / seconds for seconds in took]
        deviation = statistics.stdev(rates) if len(rates) > 1 else 0.0
        return {"mean": statistics.mean(rates), "std": deviation, "samples": rates}

    def _read_before(self, depth: int) -> Snapshot | None:
        """Return a snapshot of a context of `depth` tokens; extends the last snapshot if that is shorter."""
        if depth == 0 or (self._prefix is not None and self._prefix.length > depth):
            self.close()
        if depth and (self._prefix is None or self._prefix.length < depth):
            with closing(self.model.state()) as state:
                if self._prefix is not None:
                    state.restore(self._prefix)
                    self.close()
                self._chunks(state, depth - state.length)
                self._prefix = state.snapshot()
        return self._prefix

    def _start(self) -> float:
        """Reset the profile and return the current time."""
        self._ops.clear()
        return perf_counter()

    def _forward(self, state: State, n: int) -> tuple[float, float]:
        """Return the median seconds of a forward and of its call on the host, after one warm-up."""
        whole, host = [], []
        for _ in range(4 * self.repeat + 1):
            tokens = self._ids(n)
            start = perf_counter()
            self.model.forward([Span.chain(state, tokens)])
            host.append(perf_counter() - start)
            self.model.finish()
            whole.append(perf_counter() - start)
            state.commit([])
        return statistics.median(whole[1:]), statistics.median(host[1:])

    def _chunks(self, state: State, n: int) -> None:
        if n > self.model.config.context:
            raise RequestError(f"{n} tokens don't fit the context of {self.model.config.context}")
        chunk = self.model.prefill_chunk
        for start in range(0, n, chunk):
            tokens = self._ids(min(chunk, n - start))
            self.model.forward([Span.chain(state, tokens, prefill=True, logits=False)])

    def _ids(self, n: int) -> NDArray[np.int32]:
        return self._draws.integers(0, self.model.n_vocab, n, dtype=np.int32)
