"""Touch a model before anybody waits for it, so that what must be compiled is."""

from collections.abc import Callable

from dflash.decode.engine import Engine
from dflash.decode.sampling import Sampling
from dflash.decode.session import Session
from dflash.kernels import compiled

_ALL_THREADS = 1 << 18
"""Values in an array from which on every op uses all threads, and another kernel than for less."""

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
    tell("first forward")
    _write(engine, 2, Sampling())
    if engine.model.device == "cuda":
        tell("graphs")
        engine.model.warm()
        return
    if compiled.is_known(kind):
        return
    rows = min(engine.chunk, _ALL_THREADS // engine.model.config.width + 1, engine.model.config.context - 2)
    for number, sampling in enumerate(_WAYS, 1):
        tell(f"compiling {number}/{len(_WAYS)}")
        _write(engine, rows + 1 if number == 1 else 24, sampling)
    compiled.remember(kind)


def _write(engine: Engine, n_prompt: int, sampling: Sampling) -> None:
    for _ in engine.stream(Session([0] * n_prompt, sampling=sampling, max_tokens=2)):
        pass
