"""Timing a model: rates, shares of ops, the cost of a wider forward."""

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.errors import RequestError
from dflash.kernels.profile import profile
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span
from dflash.model.model import Model

DEPTH = 128
"""Tokens of text before the forwards whose costs are compared."""


class Bench:
    """Times one model on random tokens.

    Parameters
    ----------
    model : Model
        Nobody else uses it meanwhile.
    repeat : int
        How often each figure is taken.
    """

    def __init__(self, model: Model, *, repeat: int) -> None:
        self.model, self.repeat = model, repeat
        self._draws = np.random.default_rng(0)
        self._ops: dict[str, float] = {}

    def rate(self, n: int, run: Callable[[], float]) -> dict[str, Any]:
        """Tokens a second of a `run` that handles `n` and returns its seconds, after one that does not count."""
        run()
        rates = [n / run() for _ in range(self.repeat)]
        deviation = statistics.stdev(rates) if len(rates) > 1 else 0.0
        return {"mean": statistics.mean(rates), "std": deviation, "samples": rates}

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

    def write(self, n: int, depth: int) -> float:
        """Seconds to write `n` tokens after `depth` others: one sequence, greedy, through the whole loop."""
        if depth + 1 + n > self.model.config.context:
            raise RequestError(f"{depth + 1 + n} tokens don't fit the context of {self.model.config.context}")
        start = self._start()
        prompt = self._ids(depth + 1).tolist()
        for step in Engine(self.model, chunk=self.model.chunk).stream(Session(prompt, max_tokens=n)):
            if step.prefilled:
                start = self._start()
        return perf_counter() - start

    def forward_costs(self) -> list[dict[str, float]]:
        """Milliseconds of a forward of 1 to 64 pending tokens with their logits, and over those of one token."""
        state = self.model.state()
        try:
            self._chunks(state, DEPTH)
            costs = [(n, self._forward(state, n)) for n in (1, 2, 4, 8, 16, 32, PENDING)]
        finally:
            state.close()
        return [{"tokens": n, "ms": took * 1e3, "relative": took / costs[0][1]} for n, took in costs]

    def _start(self) -> float:
        """Begin to count time, here and in a profile."""
        self._ops.clear()
        return perf_counter()

    def _forward(self, state: Any, n: int) -> float:
        parents = np.arange(-1, n - 1, dtype=np.int32)
        took = []
        for _ in range(4 * self.repeat):
            tokens = self._ids(n)
            start = perf_counter()
            self.model.forward([Span(state, tokens, parents)])
            self.model.finish()
            took.append(perf_counter() - start)
            state.commit([])
        return statistics.median(took)

    def _chunks(self, state: Any, n: int) -> None:
        if n > self.model.config.context:
            raise RequestError(f"{n} tokens don't fit the context of {self.model.config.context}")
        chunk = self.model.chunk
        for start in range(0, n, chunk):
            tokens = self._ids(min(chunk, n - start))
            parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
            self.model.forward([Span(state, tokens, parents, whole=True, logits=False)])

    def _ids(self, n: int) -> NDArray[np.int32]:
        return self._draws.integers(0, self.model.n_vocab, n, dtype=np.int32)
