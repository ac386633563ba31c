"""A target of a few lines: it remembers its text as a list, and its logits are a hash of every token on the path.

So whatever mixes up a history shows. The state is folded from token to token and can't be turned back. Pages hold the
tokens in place of keys and values: a page that was freed, shared or not copied when it should have been shows, too.
"""

import functools
import hashlib
from copy import copy
from types import SimpleNamespace

import numpy as np

from dflash.kernels.delta.state_copies import StateCopy
from dflash.kernels.ragged import PAGE, PENDING
from dflash.model.attachments import Attachments
from dflash.model.batch import Forward
from dflash.model.state.pools import Pools


def finish(engine):
    """Step until all sessions have ended."""
    while engine.busy:
        engine.step()


def fold(memory, token):
    return hashlib.blake2b(memory + int(token).to_bytes(4, "little"), digest_size=8).digest()


class ToyPools(Pools):
    """The real accounts of pages and slots; a page holds token ids."""

    def __init__(self, pages, slots):
        self.pages, self.slots, self.snapshots = pages, slots, 0
        self._used_slots, self._recurrent = set(), []
        self.tokens = np.full((pages, PAGE), -1, np.int32)
        self._free_pages, self._free_slots = list(range(pages)), list(range(slots))
        self._holders, self._states = [0] * pages, []

    def return_pages(self, pages):
        super().return_pages(pages)
        for page in pages:
            assert self._holders[page] >= 0, "returned twice"
            if not self._holders[page]:
                self.tokens[page] = -1

    def copy_page(self, source, target):
        self.tokens[target] = self.tokens[source]

    def write(self, pages, position, token):
        page = pages[position // PAGE]
        assert self._holders[page] == 1, "a shared page is written"
        self.tokens[page, position % PAGE] = token

    def read(self, pages, length):
        return self.tokens[pages[: -(-length // PAGE)]].reshape(-1)[:length]


class Snapshot:
    def __init__(self, state, at=None):
        self.text, self.memory, self.length = list(state.text), state.memory, state.length
        if at is not None:
            (self.memory,) = at.arrays
            self.text, self.length = self.text[: at.length], at.length
        self.pools, self.n_bytes, self.recurrent = state.pools, 8, state.recurrent
        whole, rest = divmod(self.length, PAGE)
        self.pages = state.pages[:whole] + self.pools.take_pages(bool(rest))
        self.pools.share_pages(state.pages[:whole])
        if rest:
            self.pools.copy_page(state.pages[whole], self.pages[whole])
        self.pools.snapshots += 1

    @property
    def closed(self):
        return self.pools is None

    def cut(self, length):
        if self.recurrent:
            return None
        found = copy(self)
        found.text, found.length, found.memory = self.text[:length], length, functools.reduce(fold, self.text[:length], b"")
        found.pages = self.pages[: -(-length // PAGE)]
        self.pools.share_pages(found.pages)
        self.pools.snapshots += 1
        return found

    def close(self):
        if self.pools is not None:
            self.pools.snapshots -= 1
            self.pools.return_pages(self.pages)
            self.pools = None


class State:
    def __init__(self, pools, recurrent=True):
        self.slot, self.recurrent = pools.take_slot(), recurrent
        self.pools, self.text, self.memory, self.pages, self.pending = pools, [], b"", [], None

    @property
    def length(self):
        return len(self.text)

    def reserve(self, n):
        missing = -(-(self.length + n) // PAGE) - len(self.pages)
        if missing > 0:
            self.pages += self.pools.take_pages(missing)

    def mark_read(self, parents, *, prefill):
        raise AssertionError("can_overlap is False, so no row was read ahead")

    def commit(self, path):
        above = -1
        for row in path:
            token, memory, parent = self.pending[row]
            assert parent == above, f"{path} is no path"
            self.pools.write(self.pages, self.length, token)
            self.text.append(token)
            self.memory, above = memory, row
        self.pending = None

    def copy_after(self, n):
        return StateCopy(n, self.length + n, [])

    def snapshot(self, copy=None) -> Snapshot:
        return Snapshot(self, copy)

    def restore(self, snapshot):
        assert not snapshot.closed
        whole, rest = divmod(snapshot.length, PAGE)
        last = self.pools.take_pages(bool(rest))
        if rest:
            self.pools.copy_page(snapshot.pages[whole], last[0])
        self.pools.share_pages(snapshot.pages[:whole])
        self.pools.return_pages(self.pages)
        self.pages = snapshot.pages[:whole] + last
        self.text, self.memory, self.pending = list(snapshot.text), snapshot.memory, None

    def host_arrays(self):
        self.pending = None
        text, memory = np.array(self.text, np.int32), np.frombuffer(self.memory, np.uint8).copy()
        return {"text": text, "memory": memory, "pages": self.pools.read(self.pages, self.length).copy()}

    def restore_from_host(self, arrays, shared=()):
        assert not self.pages
        self.text, self.memory = arrays["text"].tolist(), arrays["memory"].tobytes()
        self.pages = self.pools.take_pages(-(-self.length // PAGE) - len(shared))
        self.pages[:0] = shared
        self.pools.share_pages(shared)
        for position, token in enumerate(arrays["pages"].tolist()):
            if position >= len(shared) * PAGE:
                self.pools.write(self.pages, position, token)

    def close(self):
        if self.pools is not None:
            self.pools.return_slot(self.slot)
            self.pools.return_pages(self.pages)
            self.pools = None


class Toy:
    """`law(text)`, if given, makes the logits of a path instead of the hash; `sharp` is the spread of hashed logits.

    With `rounds`, prefilled tokens leave another memory than decoded ones, as they do on a GPU. Snapshots of one that is not
    `recurrent` can be cut back.
    """

    device = "cpu"

    def __init__(
        self, n_vocab=13, *, pages=64, slots=8, context=2000, rows=128, pending=None, sharp=2.0, law=None, rounds=False,
        recurrent=True,
    ):  # fmt: skip
        self.n_vocab, self.max_rows, self.sharp, self.law, self.rounds = n_vocab, rows, sharp, law, rounds
        self.recurrent = recurrent
        self.chunk_alignment, self.can_overlap, self.max_state_copies = 1, False, 0
        self.attachments = Attachments()
        self.config = SimpleNamespace(context=context, n_vocab=n_vocab, width=2, n_layers=1, pending=pending or PENDING)
        self.pools = ToyPools(pages, slots)
        self.forwards = []
        self.before_forward = lambda spans: None

    @property
    def leaked(self):
        p = self.pools
        return (p.pages - p.free_pages, p.slots - p.free_slots, p.snapshots)

    def state(self) -> State:
        return State(self.pools, self.recurrent)

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
            assert state.length + len(span.tokens) <= len(state.pages) * PAGE, "more than was reserved"
            assert (state.pools.read(state.pages, state.length) == state.text).all(), "the pages hold another text"
            assert span.prefill or len(span.tokens) <= self.config.pending
            rows, texts = [], []
            for token, parent in zip(span.tokens.tolist(), span.parents.tolist(), strict=True):
                assert 0 <= token < self.n_vocab
                memory, text = (rows[parent][1], texts[parent]) if parent >= 0 else (state.memory, state.text)
                rows.append((token, fold(memory + b"r" * (self.rounds and span.prefill), token), parent))
                texts.append([*text, token])
                hidden.append([token, len(text)])
                if span.logits:
                    logits.append(self.expect(rows[-1][1], texts[-1]))
            assert not span.copies or (span.prefill and sum(len(s.copies) for s in spans) <= self.max_state_copies)
            for one in span.copies:
                one.arrays.append(rows[one.rows - 1][1])
            state.pending = rows
            if span.prefill:
                state.commit(range(len(rows)))
        hidden = np.array(hidden, np.float32)
        logits = np.array(logits, np.float32).reshape(-1, self.n_vocab)
        return Forward(logits, hidden, {layer: hidden + layer for layer in capture}, tuple(spans))
