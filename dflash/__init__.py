"""Run Qwen3.5-type GGUF models and swap the way their tokens are decoded.

::

    import dflash

    lm = dflash.load("demo")
    print(lm.generate("def fibonacci(n):", max_tokens=64))
    lm.generate([{"role": "user", "content": "What is the capital of France?"}])

`load` gives an `LM`. `Plain` is the strategy that guesses nothing. Importing this is cheap: kernels and numba come with the
first use.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dflash.errors import DFlashError

if TYPE_CHECKING:
    from dflash.decode.sampling import Sampling
    from dflash.decode.strategy import Plain
    from dflash.generation import Generation
    from dflash.lm import LM

__all__ = ["LM", "DFlashError", "Generation", "Plain", "Sampling", "__version__", "load"]

_LAZY = {
    "LM": "dflash.lm",
    "Generation": "dflash.generation",
    "Plain": "dflash.decode.strategy",
    "Sampling": "dflash.decode.sampling",
}


def load(
    name: str | os.PathLike[str],
    *,
    device: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    sequences: int = 8,
    kv: str = "f16",
    progress: bool = False,
) -> "LM":
    """Load a model.

    Parameters
    ----------
    name : str or path
        A GGUF file; ``demo``, which comes with dflash; or ``hf:org/repo:quant`` of the Hugging Face hub.
    device : str
        ``"cuda"``, ``"cpu"``, or ``"auto"``: a GPU where one can be used.
    threads : int, optional
        Cores to use; all that this process may run on if None.
    context : int, optional
        Tokens that a text may have; what the model was trained for if None.
    sequences : int
        Texts that may be in work at a time; further ones wait.
    kv : str
        How keys and values are stored: ``"f16"`` or ``"f32"``.
    progress : bool
        Draw bars on stderr while downloading, loading and compiling.

    Returns
    -------
    LM

    Raises
    ------
    NotFound
        If there is no such file, name or repository.
    FormatError, Unsupported
        If the file is damaged, or dflash does not run its kind.
    RequestError
        If an argument is out of range.
    DownloadError
        If the hub can't be reached.
    """
    from dflash.lm import LM
    from dflash.progress import stages
    from dflash.serve.start import start

    with stages(progress) as tell:
        settings = {"threads": threads, "context": context, "sequences": sequences, "kv": kv}
        return LM(*start(name, device=device, progress=tell, **settings))


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("dflash")
        except PackageNotFoundError:
            return "0"
    raise AttributeError(f"module 'dflash' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
