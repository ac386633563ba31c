"""Drafts whose tokens are still on the device."""

from __future__ import annotations

import numpy as np

from dflash.decode.drafting.draft import Draft, Ints, Positions
from dflash.decode.view import SessionView
from dflash.kernels.gpu.lazy_array import LazyArray
from dflash.model.protocols.device_drafter import DeviceDrafts


class DeferredDraft(Draft):
    """A draft of known size whose tokens are still being computed. Reading `tokens` or `parents` waits for them.

    drafts: drafts of one pass on the device: ``drafts.tree(i)`` returns tokens and parents (n,). None once they were read.
    chain: True if the draft has no forks.
    """

    __slots__ = ("_chain", "_found", "_line", "_n", "drafts", "index")

    __setattr__ = object.__setattr__  # tokens are stored when they are first read

    def __init__(self, drafts: DeviceDrafts, index: int, n: int, *, chain: bool) -> None:
        self.drafts: DeviceDrafts | None = drafts
        self.index: int = index
        self._n, self._chain = n, chain
        self._found: tuple[Ints, Ints] | None = None
        self._line: list[int] | None = None
        object.__setattr__(self, "scores", None)
        object.__setattr__(self, "probs", None)
        object.__setattr__(self, "_children", None)

    def __len__(self) -> int:
        return self._n

    @property
    def tokens(self) -> Ints:
        """See `Draft`."""
        return self._tree()[0]

    @property
    def parents(self) -> Ints:
        """See `Draft`."""
        return np.arange(-1, self._n - 1, dtype=np.int32) if self._chain else self._tree()[1]

    @property
    def without_forks(self) -> bool:
        """See `Draft`; known at once."""
        return self._chain

    def positions(self, n: int) -> Positions:
        """See `Draft`; lazy for a tree."""
        if self._chain:
            return range(n, n + 1 + self._n)
        return LazyArray(lambda: np.append(n, n + self.depths), 1 + self._n)

    def child(self, node: int, token: int) -> int:
        """See `Draft`."""
        if not self._chain:
            return super().child(node, token)
        if self._line is None:
            self._line = self.tokens.tolist()
        return node + 1 if node + 1 < self._n and self._line[node + 1] == token else -1

    def cut(self, n: int) -> DeferredDraft:
        """See `Draft`."""
        if n >= self._n:
            return self
        assert self.drafts is not None, "drafts are cut before they are fetched"
        return DeferredDraft(self.drafts, self.index, max(n, 0), chain=self._chain)

    def _tree(self) -> tuple[Ints, Ints]:
        if self._found is None:
            assert self.drafts is not None, "it was not fetched before"
            tokens, parents = self.drafts.tree(self.index)
            self._found = tokens[: self._n], parents[: self._n]
            self.drafts = None  # a step keeps its draft; the device's memory must not live as long
        return self._found


def can_defer(session: SessionView, *, drafts: bool = True) -> bool:
    """Return True if tokens of a session may stay on the device until the next step is launched.

    Processors, grammars, recoveries, forced tokens and log-probabilities need them on the host before; verifiers other than
    `Coupled` need draft tokens, unless they know before how many they accept.
    """
    sampler, needs_drafts = session.sampler, session.verifier is not None and not hasattr(session.verifier, "accepts")
    if session.grammar is not None or (drafts and needs_drafts):
        return False
    return not (sampler.processors or session.recovery_states or session.forced_ids) and sampler.params.n_top is None
