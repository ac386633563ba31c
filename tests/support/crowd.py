"""Sessions that compete for few, small KV pages: drafters with pages of their own, recoveries that hold, restart, inject."""

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import toy
from toy import ToyPools

from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.recoveries.base import DONE, HOLD, PASS, Inject, Restart
from dflash.decode.scheduling import admission, memory

SMALL = 8


@contextmanager
def small_pages():
    """Let pages hold and drafts have few tokens, so that short sessions need many pages. For toys made inside."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (toy, memory, admission):
            patch.setattr(module, "PAGE", SMALL)
        for module in (toy, memory):
            patch.setattr(module, "PENDING", SMALL)
        yield


class Pages(Drafter):
    """Drafts from known texts with some errors, and needs a page of its own for each page of the target.

    Its snapshots can be copied to the host, if it drafts chains.
    """

    def __init__(self, target, texts, *, tree=False):
        self.pools = ToyPools(target.pages + target.slots, target.slots)
        self.texts, self.tree = texts, tree

    def start(self, session, model, snapshot=None):
        return _Paged(self, session, snapshot)

    def snapshot_from_host(self, model, arrays):
        return _SavedCopy(self.pools, arrays["seen"].tolist())


class _Copy:
    n_bytes = 5

    def __init__(self, pools, seen):
        self.pools, self.seen = pools, list(seen)
        self.pages = self.pools.take_pages(-(-len(self.seen) // SMALL))

    def close(self):
        self.pools.return_pages(self.pages)


class _SavedCopy(_Copy):
    def host_arrays(self):
        return {"seen": np.array(self.seen, np.int32)}


class _Paged:
    capture = (2,)

    def __init__(self, drafter, session, snapshot):
        self.drafter, self.session, self.pages = drafter, session, []
        self.slot = drafter.pools.take_slot()
        self.seen = list(snapshot.seen) if snapshot is not None else []
        self.first = session.n_prefilled - len(self.seen)
        assert self.seen == session.token_ids[self.first : session.n_prefilled]

    def reserve(self, length):
        missing = -(-(length - self.first) // SMALL) - len(self.pages)
        if missing > 0:
            self.pages += self.drafter.pools.take_pages(missing)

    def propose(self, max_draft):
        ids = self.session.token_ids
        assert len(self.seen) == len(ids) - 1 - self.first, "not all rows were observed"
        assert len(ids) - 1 - self.first + max_draft <= SMALL * len(self.pages), "a draft is longer than was reserved"
        text = self.drafter.texts.get(tuple(ids[: self.session.n_prompt]), [])
        tokens = [token if (len(ids) + i) % 5 else 0 for i, token in enumerate(text[len(ids) :][:max_draft])]
        return Draft(tokens, [max(i - 1 - i % 2, -1) for i in range(len(tokens))] if self.drafter.tree else None)

    def observe(self, step, out, rows):
        self.seen += [int(token) for token, _ in out.hidden[rows]]
        assert self.seen == self.session.token_ids[self.first :][: len(self.seen)]
        assert len(self.seen) <= SMALL * len(self.pages)

    def snapshot(self):
        return (_Copy if self.drafter.tree else _SavedCopy)(self.drafter.pools, self.seen)

    def close(self):
        self.drafter.pools.return_slot(self.slot)
        self.drafter.pools.return_pages(self.pages)


@dataclass(frozen=True)
class Meddler:
    """Holds tokens back until there are `at`; then lets them pass, restarts, or injects two tokens after exactly so many."""

    kind: str
    at: int

    def start(self, session):
        return _Meddling(self)


class _Meddling:
    name = "Meddler"

    def __init__(self, recovery):
        self.recovery, self.n_seen, self.restarts = recovery, 0, recovery.kind == "restart"

    def check_step(self, session, accepted):
        assert session.n_tokens == self.n_seen, "a step is missing, or was seen twice"
        self.n_seen += len(accepted.tokens)
        if self.recovery.kind == "inject" and self.n_seen > self.recovery.at - (accepted.finish is None):
            session.recovery_states.remove(self)
            return Inject(self.recovery.at - session.n_tokens, (3, 4), "for a test")
        if self.recovery.kind == "inject" or accepted.finish is not None:
            return PASS
        if self.n_seen < self.recovery.at:
            return HOLD
        return Restart("for a test") if self.restarts else DONE
