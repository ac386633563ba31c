"""Timing a model: rates, shares of ops, the cost of a wider forward."""

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.decode.engine import Engine
from dflash.decode.session import Session, Step
from dflash.errors import RequestError
from dflash.kernels.profile import profile
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span

DEPTH = 128
"""Tokens of text before the forwards whose costs are compared."""

FORWARDS = (1, 2, 4, 8, 16, 23, 32, PENDING)
"""Tokens of the forwards whose costs are compared; 23 are a tree of 22 and its root."""

SECONDS = 3.0
"""A figure is not taken again once its runs have lasted so long."""


class Bench:
    """Times one model on random tokens.

    Parameters
    ----------
    model : Model or DeviceModel
        With room for two texts. Nobody else uses it meanwhile.
    repeat : int
        How often each figure is taken at most.
    """

    def __init__(self, model: Any, *, repeat: int) -> None:
        self.model, self.repeat = model, repeat
        self._draws = np.random.default_rng(0)
        self._ops: dict[str, float] = {}
        self._prefix: Any = None

    def reading(self, n: int) -> dict[str, Any]:
        """Tokens a second of reading a prompt of `n`, after one of at most two chunks that does not count."""
        self.read(min(n, 2 * self.model.prefill_chunk))
        return self._rate(n, lambda: self.read(n))

    def writing(self, n: int, depth: int) -> dict[str, Any]:
        """Tokens a second of writing `n` after `depth` others, and what the host does in a step, in microseconds."""
        self.write(min(n, 16), depth)
        steps: list[Step] = []
        rate = self._rate(n, lambda: self.write(n, depth, steps))
        means = {part: statistics.mean(getattr(step, part) for step in steps) for part in ("propose", "verify", "commit")}
        return {**rate, "depth": depth, "host_us": {part: mean * 1e6 for part, mean in means.items()}}

    def shares(self, run: Callable[[], float]) -> dict[str, float]:
        """Share of the time of one more `run` that each op takes; ``other`` is what no op accounts for."""
        with profile() as self._ops:
            total = run()
        shares = {op: took / total for op, took in sorted(self._ops.items(), key=lambda item: -item[1])}
        return {**shares, "other": max(0.0, 1 - sum(shares.values()))}

    def read(self, n: int) -> float:
        """Seconds to read a prompt of `n` tokens, in the loop's chunks."""
        state = self.model.state()
        try:
            start = self._start()
            self._chunks(state, n)
            self.model.finish()
            return perf_counter() - start
        finally:
            state.close()

    def write(self, n: int, depth: int, steps: list[Step] | None = None) -> float:
        """Seconds to write `n` tokens after `depth` others: one sequence, greedy, through the whole loop.

        The others are read before, once for all texts of that depth; the steps that wrote are added to `steps`.
        """
        if depth + 1 + n > self.model.config.context:
            raise RequestError(f"{depth + 1 + n} tokens don't fit the context of {self.model.config.context}")
        session = Session(self._ids(depth + 1).tolist(), max_tokens=n, prefix=self._read_before(depth))
        start = self._start()
        for step in Engine(self.model, chunk=self.model.prefill_chunk).stream(session):
            if step.tokens and steps is not None:
                steps.append(step)
        return perf_counter() - start

    def forward_costs(self, sizes: Sequence[int] = FORWARDS) -> list[dict[str, Any]]:
        """What a forward of some pending tokens with their logits costs.

        Returns
        -------
        list of dict
            ``tokens``, ``ms``, ``relative`` to the first size, ``host_us`` until the call returns; on a GPU ``launches``.
        """
        state = self.model.state()
        try:
            self._chunks(state, DEPTH)
            costs = [(n, *self._forward(state, n)) for n in sizes]
        finally:
            state.close()
        launches = getattr(self.model, "launches", {})
        found = []
        for n, took, host in costs:
            cost = {"tokens": n, "ms": took * 1e3, "relative": took / costs[0][1], "host_us": host * 1e6}
            bucket = min((size for size in launches if size >= n), default=None)
            found.append(cost if bucket is None else {**cost, "launches": launches[bucket]})
        return found

    def close(self) -> None:
        """Give back the text that was read last."""
        if self._prefix is not None:
            self._prefix.close()
            self._prefix = None

    def _rate(self, n: int, run: Callable[[], float]) -> dict[str, Any]:
        took: list[float] = []
        while not took or (len(took) < self.repeat and sum(took) < SECONDS):
            took.append(run())
        rates = [n / seconds for seconds in took]
        deviation = statistics.stdev(rates) if len(rates) > 1 else 0.0
        return {"mean": statistics.mean(rates), "std": deviation, "samples": rates}

    def _read_before(self, depth: int) -> Any:
        """A snapshot of a text of `depth` tokens, which may grow out of the last one."""
        if depth == 0 or (self._prefix is not None and self._prefix.length > depth):
            self.close()
        if depth and (self._prefix is None or self._prefix.length < depth):
            state = self.model.state()
            try:
                if self._prefix is not None:
                    state.restore(self._prefix)
                    self.close()
                self._chunks(state, depth - state.length)
                self._prefix = state.snapshot()
            finally:
                state.close()
        return self._prefix

    def _start(self) -> float:
        """Begin to count time, here and in a profile."""
        self._ops.clear()
        return perf_counter()

    def _forward(self, state: Any, n: int) -> tuple[float, float]:
        """Median seconds of a forward and of the call alone, after one that does not count."""
        parents = np.arange(-1, n - 1, dtype=np.int32)
        whole, host = [], []
        for _ in range(4 * self.repeat + 1):
            tokens = self._ids(n)
            start = perf_counter()
            self.model.forward([Span(state, tokens, parents)])
            host.append(perf_counter() - start)
            self.model.finish()
            whole.append(perf_counter() - start)
            state.commit([])
        return statistics.median(whole[1:]), statistics.median(host[1:])

    def _chunks(self, state: Any, n: int) -> None:
        if n > self.model.config.context:
            raise RequestError(f"{n} tokens don't fit the context of {self.model.config.context}")
        chunk = self.model.prefill_chunk
        for start in range(0, n, chunk):
            tokens = self._ids(min(chunk, n - start))
            parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
            self.model.forward([Span(state, tokens, parents, prefill=True, logits=False)])

    def _ids(self, n: int) -> NDArray[np.int32]:
        return self._draws.integers(0, self.model.n_vocab, n, dtype=np.int32)
