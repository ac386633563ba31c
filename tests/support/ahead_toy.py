"""Toy model that starts its next forward before the sampled tokens reach the host."""

import numpy as np
import toy
from toy import Snapshot, State, Toy, fold

from dflash.model.batch import Forward


class AheadState(State):
    """State of the toy, with rows pending in a forward whose result is not known yet."""

    def __init__(self, pools):
        self.rows = self.next_rows = None
        super().__init__(pools)

    @property
    def pending(self):
        return None if self.rows is None else tuple(parent for *_, parent in self.rows)

    @pending.setter
    def pending(self, rows):
        self.rows = rows

    def commit(self, path):
        for row in path:
            token, self.memory, _ = self.rows[row]
            self.pools.write(self.pages, self.length, token)
            self.text.append(token)
        self.rows = None

    def mark_read(self, parents, *, prefill):
        assert (parents, prefill) == ((-1,), False)
        self.rows, self.next_rows = self.next_rows, None

    def snapshot(self, copy=None) -> Snapshot:
        if copy is None:
            self.rows = None
        return Snapshot(self, copy)


class AheadToy(Toy):
    """Reads the likeliest token of the last forward's rows before it is asked to."""

    can_overlap = True
    latest = behind = None
    most_overlapped = 64

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.can_overlap, self.ahead, self.n_behind = True, 0, 0

    def state(self) -> AheadState:
        return AheadState(self.pools)

    def forward(self, spans, *, capture=()):
        self.invalidate(self.latest, self.behind)
        self.behind, self.latest = None, super().forward(spans, capture=capture)
        return self.latest

    def forward_before(self, spans, *, capture=()):
        return self.forward(spans, capture=capture)

    def forward_behind(self, spans, *, capture=()):
        self.n_behind += 1
        assert self.behind is None, "one forward of prompts between two others"
        self.behind = super().forward(spans, capture=capture)
        return self.behind

    @staticmethod
    def invalidate(*results):
        for out in results:
            if out is not None:
                for array in (out.logits, out.hidden, *out.captured.values()):
                    array[...] = np.nan

    def forward_overlapped(self, spans, *, capture=()):
        logits, self.ahead = [], self.ahead + 1
        rows = {id(span.state): row for span, row in zip(self.latest.spans, self.latest.logits, strict=True)}
        for span in spans:
            state, token = span.state, int(rows[id(span.state)].argmax())
            assert len(state.pages) * toy.PAGE >= state.length + 2, "pages are taken before the launch"
            above, memory, _ = state.rows[0]
            state.next_rows = [(token, fold(memory, token), -1)]
            logits.append(self.expect(state.next_rows[0][1], [*state.text, above, token]))
        self.invalidate(self.behind)
        self.behind, self.latest = (
            None,
            Forward(np.array(logits, np.float32), np.zeros((len(spans), 2), np.float32), {}, tuple(spans)),
        )
        return self.latest
