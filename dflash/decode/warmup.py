"""Compile kernels and capture graphs of a model before the first request."""

from collections.abc import Callable

import numpy as np

from dflash.decode.drafting.shapes import Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.kernels.cpu import warm_marker
from dflash.kernels.lookup import Index
from dflash.model.candidates import Candidates

_ALL_THREADS = 1 << 18
"""Array size from which every op runs in several threads, with a kernel of its own."""

_DRAFTS = "drafts on the host"

_WAYS = (
    Sampling(logprobs=1),
    Sampling(temperature=1.0, seed=0),
    Sampling(temperature=1.0, top_k=2, seed=0),
    Sampling(temperature=1.0, top_p=0.5, min_p=0.1, seed=0),
)


def warm(engine: Engine, kind: str, tell: Callable[[str], None]) -> None:
    """Decode a few tokens; at the first start of a kind of model on a machine, with each sampling that has own kernels.

    GPU kernels are compiled while a model is loaded; there, graphs are captured instead.

    Parameters
    ----------
    engine : Engine
        Idle.
    kind : str
        Key of the kernels that the model uses.
    tell : callable
        Called with a description of each stage before it begins.

    Raises
    ------
    Exception
        The error of the first session that fails.
    """
    if not warm_marker.is_known(_DRAFTS):
        tell("compiling drafts")
        _compile_drafts()
        warm_marker.remember(_DRAFTS)
    tell("first forward")
    _write(engine, 2, Sampling())
    if engine.model.device == "cuda":
        tell("graphs")
        engine.model.warm()
        return
    if warm_marker.is_known(kind):
        return
    rows = min(engine.chunk, _ALL_THREADS // engine.model.config.width + 1, engine.model.config.context - 2)
    for number, sampling in enumerate(_WAYS, 1):
        tell(f"compiling {number}/{len(_WAYS)}")
        _write(engine, rows + 1 if number == 1 else 24, sampling)
    warm_marker.remember(kind)


def _compile_drafts() -> None:
    """Compile the kernels that make drafts on the host: the first request that uses them would stop all others."""
    index = Index(shortest=2, longest=3)
    index.append([1, 2, 3, 1, 2])
    index.match()
    scores = np.log(np.array([[0.5, 0.25], [0.5, 0.25]], np.float32))
    ids, edges = np.array([[1, 2], [3, 4]], np.int32), np.repeat(scores[:, None], 2, axis=1)
    for found in (Candidates(ids, scores), Candidates(ids, scores, edges)):
        Tree(3).draft(found, 3)


def _write(engine: Engine, n_prompt: int, sampling: Sampling) -> None:
    for _ in engine.stream(Session([0] * n_prompt, sampling=sampling, max_tokens=2, use_prefix_cache=False)):
        pass
