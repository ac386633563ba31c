"""A target of a few lines: it remembers its text as a list, and its logits are a hash of every token on the path.

So whatever mixes up a history shows. The state is folded from token to token and can't be turned back; pages, slots and
snapshots are counted.
"""

import hashlib
from types import SimpleNamespace

import numpy as np

from dflash.errors import PoolExhausted
from dflash.kernels.ragged import PAGE, PENDING
from dflash.model.attachments import Attachments
from dflash.model.batch import Forward


def fold(memory, token):
    return hashlib.blake2b(memory + int(token).to_bytes(4, "little"), digest_size=8).digest()


class Snapshot:
    def __init__(self, state):
        self.text, self.memory, self.length = list(state.text), state.memory, state.length
        self.pools = state.pools
        self.pages, self.n_bytes = [], 8
        self.pools.snapshots += 1

    def close(self):
        if self.pools is not None:
            self.pools.snapshots -= 1
            self.pools = None


class State:
    def __init__(self, pools):
        if not pools.free_slots:
            raise PoolExhausted("no slot")
        self.pools, self.text, self.memory, self.pages, self.pending = pools, [], b"", 0, None
        pools.free_slots -= 1

    @property
    def length(self):
        return len(self.text)

    def reserve(self, n):
        missing = max(-(-(self.length + n) // PAGE) - self.pages, 0)
        if missing > self.pools.free_pages:
            raise PoolExhausted("no page")
        self.pools.free_pages -= missing
        self.pages += missing

    def mark_read(self, parents, *, prefill):
        raise AssertionError("can_overlap is False, so no row was read ahead")

    def commit(self, path):
        above = -1
        for row in path:
            token, memory, parent = self.pending[row]
            assert parent == above, f"{path} is no path"
            self.text.append(token)
            self.memory, above = memory, row
        self.pending = None

    def snapshot(self) -> Snapshot:
        return Snapshot(self)

    def restore(self, snapshot):
        self.text, self.memory, self.pending = list(snapshot.text), snapshot.memory, None

    def close(self):
        if self.pools is not None:
            self.pools.free_slots += 1
            self.pools.free_pages += self.pages
            self.pools = None


class Toy:
    """`law(text)`, if given, makes the logits of a path instead of the hash; `sharp` is the spread of hashed logits."""

    device = "cpu"

    def __init__(self, n_vocab=13, *, pages=64, slots=8, context=2000, rows=128, sharp=2.0, law=None):
        self.n_vocab, self.max_rows, self.sharp, self.law = n_vocab, rows, sharp, law
        self.chunk_alignment, self.can_overlap = 1, False
        self.attachments = Attachments()
        self.config = SimpleNamespace(context=context, n_vocab=n_vocab, width=2)
        self.pools = SimpleNamespace(pages=pages, free_pages=pages, slots=slots, free_slots=slots, snapshots=0)
        self.forwards = []
        self.before_forward = lambda spans: None

    @property
    def leaked(self):
        p = self.pools
        return (p.pages - p.free_pages, p.slots - p.free_slots, p.snapshots)

    def state(self) -> State:
        return State(self.pools)

    def finish(self):
        pass

    def warm(self):
        pass

    def expect(self, memory, text):
        """Logits of the token after a text."""
        if self.law is not None:
            return np.asarray(self.law(text), np.float32)
        words = np.frombuffer(hashlib.shake_128(memory).digest(4 * self.n_vocab), np.uint32)
        return (self.sharp * (words / 2**31 - 1)).astype(np.float32)

    def after(self, text):
        """The same from a text alone."""
        memory = b""
        for token in text:
            memory = fold(memory, token)
        return self.expect(memory, list(text))

    def forward(self, spans, *, capture=()):
        self.forwards.append([(len(span.tokens), span.prefill) for span in spans])
        self.before_forward(spans)
        assert sum(len(span.tokens) for span in spans) <= self.max_rows
        assert len({id(span.state) for span in spans}) == len(spans)
        logits, hidden = [], []
        for span in spans:
            state = span.state
            assert state.length + len(span.tokens) <= state.pages * PAGE, "more than was reserved"
            assert span.prefill or len(span.tokens) <= PENDING
            rows, texts = [], []
            for token, parent in zip(span.tokens.tolist(), span.parents.tolist(), strict=True):
                assert 0 <= token < self.n_vocab
                memory, text = (rows[parent][1], texts[parent]) if parent >= 0 else (state.memory, state.text)
                rows.append((token, fold(memory, token), parent))
                texts.append([*text, token])
                hidden.append([token, len(text)])
                if span.logits:
                    logits.append(self.expect(rows[-1][1], texts[-1]))
            state.pending = rows
            if span.prefill:
                state.commit(range(len(rows)))
        hidden = np.array(hidden, np.float32)
        logits = np.array(logits, np.float32).reshape(-1, self.n_vocab)
        return Forward(logits, hidden, {layer: hidden + layer for layer in capture}, tuple(spans))
