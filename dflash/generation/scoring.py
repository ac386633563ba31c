"""Logits, log-probabilities and hidden states of a given text."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.decode.sampling.params import check_whole
from dflash.errors import RequestError
from dflash.generation.engine_thread import EngineThread
from dflash.model.batch import Forward, Span
from dflash.model.protocols.sequence import SequenceState
from dflash.model.protocols.target import TargetModel

_CHUNK_BYTES = 1 << 26
"""Bytes of float32 results per chunk, 64 MiB; limits the rows of a chunk for large vocabularies."""

_MAX_ROWS = 512
"""Maximum rows of a chunk."""

Keep = Callable[[slice, Forward], None]


def logits(engine_thread: EngineThread, model: TargetModel, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits after each token of a text, float32 (T, V); see `dflash.lm.LM.logits`."""
    ids = _checked(model, tokens, 1)
    out = np.empty((len(ids), model.n_vocab), np.float32)

    def keep(rows: slice, found: Forward) -> None:
        out[rows] = np.asarray(found.logits)

    _read(engine_thread, model, ids, keep)
    return out


def log_probabilities(engine_thread: EngineThread, model: TargetModel, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Return the natural log-probability of each token but the first, float64 (T - 1,), without holding a (T, V) array."""
    ids = _checked(model, tokens, 2)
    following = ids[1:]
    out = np.empty(len(following), np.float64)

    def keep(rows: slice, found: Forward) -> None:
        values = np.asarray(found.logits)
        top = values.max(axis=1)
        total = np.exp(values - top[:, None], dtype=np.float64).sum(axis=1)
        picked = values[np.arange(len(values)), following[rows]]
        out[rows] = picked.astype(np.float64) - top - np.log(total)

    _read(engine_thread, model, ids[:-1], keep)
    return out


def hidden_states(
    engine_thread: EngineThread, model: TargetModel, tokens: Sequence[int], layers: int | Sequence[int]
) -> dict[int, NDArray[np.float32]]:
    """Return the residual stream after some layers, float32 (T, D) each; see `dflash.lm.LM.hidden_states`."""
    n_layers = model.config.n_layers
    layers = layers if isinstance(layers, Iterable) else (layers,)
    for layer in layers:
        check_whole("layers: a layer", layer, 0, n_layers)
    ids, wanted = _checked(model, tokens, 1), tuple(dict.fromkeys(map(int, layers)))
    if not wanted:
        raise RequestError(f"layers: is empty; name some of 0 to {n_layers}")
    out = {layer: np.empty((len(ids), model.config.width), np.float32) for layer in wanted}
    capture = tuple(layer for layer in wanted if layer < n_layers)

    def keep(rows: slice, found: Forward) -> None:
        for layer in wanted:
            # of a GPU: an array that its `get` copies
            values: Any = found.hidden if layer == n_layers else found.captured[layer]
            out[layer][rows] = values.get() if hasattr(values, "get") else values

    _read(engine_thread, model, ids, keep, capture=capture)
    return out


def _checked(model: TargetModel, tokens: Sequence[int], at_least: int) -> NDArray[np.int64]:
    ids = np.asarray(tokens, np.int64)
    if len(ids) < at_least:
        raise RequestError(f"the text has {len(ids)} tokens, at least {at_least} are needed")
    if ids.min() < 0 or ids.max() >= model.n_vocab:
        bad = next(int(token) for token in ids if not 0 <= token < model.n_vocab)
        raise RequestError(f"token {bad} is not in the vocabulary: ids are 0 to {model.n_vocab - 1}")
    return ids


def _read(
    engine_thread: EngineThread, model: TargetModel, ids: NDArray[np.int64], keep: Keep, *, capture: tuple[int, ...] = ()
) -> None:
    """Run a text in chunks between the engine's steps, so that other requests continue and interrupts take effect.

    Without layers to capture, the forwards compute logits.
    """
    width = len(capture) * model.config.width or model.n_vocab
    n_rows = max(16, min(_MAX_ROWS, _CHUNK_BYTES // (4 * width)))
    n_rows = -(-n_rows // model.chunk_alignment) * model.chunk_alignment
    states: list[SequenceState] = []

    def run(span: Span, rows: slice) -> None:
        keep(rows, model.forward([span], capture=capture))

    try:
        engine_thread.call(lambda: states.append(model.state()))
        for start in range(0, len(ids), n_rows):
            rows = slice(start, min(start + n_rows, len(ids)))
            span = Span.chain(states[0], ids[rows], prefill=True, logits=not capture)
            engine_thread.call(partial(run, span, rows))
    finally:
        # calls run in order: a state created after an interrupt is closed, too
        engine_thread.call(partial(_close, states))


def _close(states: Sequence[SequenceState]) -> None:
    for state in states:
        state.close()
