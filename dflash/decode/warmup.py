"""Touch a model before anybody waits for it, so that what must be compiled is."""

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
"""Values in an array from which on every op uses all threads, and another kernel than for less."""

_DRAFTS = "drafts on the host"

_WAYS = (
    Sampling(logprobs=1),
    Sampling(temperature=1.0, seed=0),
    Sampling(temperature=1.0, top_k=2, seed=0),
    Sampling(temperature=1.0, top_p=0.5, min_p=0.1, seed=0),
)


def warm(engine: Engine, kind: str, tell: Callable[[str], None]) -> None:
    """Write a few tokens; on the first start of a kind of model on a machine, in every way that has kernels of its own.

    A GPU's kernels are compiled as a model is loaded; there, graphs are captured instead.

    Parameters
    ----------
    engine : Engine
        Idle.
    kind : str
        Models of one kind use the same kernels.
    tell : callable
        Told what is about to be done.

    Raises
    ------
    Exception
        What the first of the texts failed with.
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
    """Compile what makes drafts on the host: a request that is the first to want it would stop all others meanwhile."""
    index = Index(shortest=2, longest=3)
    index.append([1, 2, 3, 1, 2])
    index.match()
    scores = np.log(np.array([[0.5, 0.25], [0.5, 0.25]], np.float32))
    ids, edges = np.array([[1, 2], [3, 4]], np.int32), np.repeat(scores[:, None], 2, axis=1)
    for found in (Candidates(ids, scores), Candidates(ids, scores, edges)):
        Tree(3).draft(found, 3)


def _write(engine: Engine, n_prompt: int, sampling: Sampling) -> None:
    for _ in engine.stream(Session([0] * n_prompt, sampling=sampling, max_tokens=2)):
        pass
