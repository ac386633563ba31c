"""A text with the hidden states that a trunk had after each token, and an MTP head that has read it."""

import numpy as np
from golden import recorded

from dflash.model.recurrent_head import Unread

NAME = "qwen35-r2-mtp-F16"


def text(device="cpu"):
    """Tokens, and hidden states where a head of that device wants them."""
    want = recorded(NAME)
    tokens, hidden = want["tokens"].astype(np.int32), want["mtp.hidden_in"].astype(np.float32)
    if device == "cuda":
        from dflash.kernels.gpu.device import array

        return tokens, array(hidden)
    return tokens, hidden


def reading(head, n, chunk=512):
    """A state that has read the first `n` pairs."""
    tokens, hidden = text(head.device)
    state = head.state()
    for start in range(0, n, chunk):
        stop = min(start + chunk, n)
        head.read_all([Unread(state, tokens[start + 1 : stop + 1], hidden[start:stop])])
    return state
