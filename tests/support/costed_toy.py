"""A toy that reads and predicts nothing, so that long prompts and many steps take no time."""

import numpy as np
from toy import Toy

from dflash.model.batch import Forward


class CostedToy(Toy):
    """Its forwards only call `before_forward`, which advances a clock."""

    def forward(self, spans, *, capture=()):
        self.before_forward(spans)
        for span in spans:
            span.state.pending = [(token, b"", parent) for token, parent in zip(span.tokens, span.parents, strict=True)]
            if span.prefill:
                span.state.text.extend(span.tokens)
                span.state.pending = None
        n = sum(len(span.tokens) for span in spans if span.logits)
        return Forward(np.zeros((n, self.n_vocab), np.float32), np.zeros((n, 2), np.float32), {}, tuple(spans))
