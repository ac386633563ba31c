"""Log-probabilities of prompt tokens, found while the prompt is prefilled."""

from collections.abc import Sequence

import numpy as np

from dflash.decode.sampling.sampler import TokenLogprobs
from dflash.decode.session import Session
from dflash.kernels.sample import top_of
from dflash.kernels.sample.cuda_logits import LogitRows
from dflash.model.protocols.target import TargetModel

MAX_BYTES = 1 << 25
"""Bytes of float32 logits of prompt tokens in one forward, 32 MiB: 33 rows of a vocabulary of 248,320 tokens.

Bounds memory, and the time by which a step delays sessions that decode: reading a row takes about a millisecond.
"""

MAX_ROWS = 256
"""Most rows with logits of prompt tokens in one forward; bounds that time for small vocabularies."""


def max_scored_rows(model: TargetModel) -> int:
    """Return the most prompt tokens of a forward whose logits are computed: a multiple of the model's alignment."""
    n = max(1, min(MAX_ROWS, MAX_BYTES // (4 * model.n_vocab)))
    return -(-n // model.chunk_alignment) * model.chunk_alignment


def score(session: Session, logits: LogitRows) -> None:
    """Append the log-probabilities of the tokens that follow a chunk of a prompt; the chunk was not counted yet.

    logits: float32 (n, V), or Logits; after each token of the chunk.
    """
    first = session.n_prefilled
    following: Sequence[int] = session.prompt_array[first + 1 : first + 1 + len(logits)].tolist()
    for row, token in zip(np.asarray(logits), following, strict=True):
        logprob, top = top_of(row, token, session.prompt_logprobs or 0)
        session.scored_prompt.append(TokenLogprobs(token, logprob, top, 1 + int(np.count_nonzero(row > row[token]))))
