"""From a name to a model: file, tokenizer, template, weights, memory."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from dflash.errors import RequestError, Unsupported
from dflash.kernels.gpu import device as gpu
from dflash.kernels.ragged import PENDING
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.keys import Keys
from dflash.model.hub import resolve
from dflash.model.model import CHUNK, Model
from dflash.model.runnable import refuse_sizes
from dflash.model.short_memory import memory_errors
from dflash.model.state.budget import n_cores, n_pages
from dflash.model.state.pools import KV_TYPES
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from dflash.model.cuda.model import DeviceModel

log = logging.getLogger("dflash.load")

Tell = Callable[[str], None]

DEVICES = ("auto", "cpu", "cuda")

MAX_SEQUENCES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model and what goes with it.

    Parameters
    ----------
    file : GGUFFile
        Open.
    model : Model or DeviceModel
        Its arithmetic, ids in and logits out; ``model.config.context`` is what a text may have here.
    tokenizer : Tokenizer
        Text to ids and back.
    template : ChatTemplate or None
        Messages to text, if the file has one.
    sequences : int
        Texts that may be in work at a time; the model has one slot more, to read a given text beside them.
    trouble : str or None
        Why the model runs on the CPU though a GPU would have been taken.
    """

    file: GGUFFile
    model: "Model | DeviceModel"
    tokenizer: Tokenizer
    template: ChatTemplate | None
    sequences: int
    trouble: str | None = None

    @property
    def kind(self) -> str:
        """Models of one kind use the same kernels."""
        config, types = self.model.config, sorted({tensor.type for tensor in self.file.tensors.values()})
        sizes = config.head_size, config.delta_size, config.conv_width, bool(config.experts)
        return f"{self.model.device} {config.architecture} {self.model.pools.kv} {sizes} {types}"


def load_model(
    name: str | os.PathLike[str],
    *,
    device: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    sequences: int = 8,
    kv: str = "f16",
    progress: Tell | None = None,
) -> Loaded:
    """Load a model.

    Parameters
    ----------
    name : str or path
        A path, ``demo``, or ``hf:org/repo@revision:quant``.
    device : str
        One of `DEVICES`; ``"auto"`` is a GPU where one can be used.
    threads : int, optional
        Cores to use; all that this process may run on if None. On a GPU, those that read the file.
    context : int, optional
        Tokens that a text may have; if None the model's own, or what fits (in half of the free memory) if that is less.
    sequences : int
        Texts that may be in work at a time.
    kv : str
        A key of `KV_TYPES`.
    progress : callable, optional
        Told what is about to be done; if given, downloads show a bar, too.

    Returns
    -------
    Loaded

    Raises
    ------
    NotFound, DownloadError
        If there is no such model, or the hub can't be reached.
    FormatError, Unsupported
        If the file is damaged, or dflash does not run its kind.
    RequestError
        If an argument is out of range, or the context does not fit the memory.
    OutOfMemory
        If the weights do not fit the GPU, or the machine has too little memory.
    """
    _check(device, threads, context, sequences, kv)
    with memory_errors(name, "ask for fewer sequences or a smaller context"):
        return _load(name, device=device, threads=threads, context=context, sequences=sequences, kv=kv, progress=progress)


def _load(
    name: str | os.PathLike[str],
    *,
    device: str,
    threads: int | None,
    context: int | None,
    sequences: int,
    kv: str,
    progress: Tell | None,
) -> Loaded:
    trouble = _trouble(device)
    tell = progress or (lambda _: None)
    path = resolve(name, progress=tqdm if progress else _Silent)
    tell("header")
    file = GGUFFile.open(path)
    try:
        config = Config.from_gguf(file.metadata, file.tensors)
        on_host = bool(trouble) or device == "cpu"
        refuse_sizes(config, "cpu" if on_host else "cuda")
        tell("tokenizer")
        tokenizer = Tokenizer.from_gguf(file.metadata)
        settings = {"context": context, "sequences": sequences, "kv": kv, "threads": threads or n_cores()}
        model = (_on_host if on_host else _on_gpu)(file, config, tell=tell, **settings)
        return Loaded(file, model, tokenizer, _template(file, tokenizer), sequences, trouble)
    except BaseException:
        file.close()
        raise


def _trouble(device: str) -> str | None:
    """Why no GPU is used though one would be welcome."""
    trouble = None if device == "cpu" else gpu.trouble()
    if trouble and device == "cuda":
        raise Unsupported(f"device 'cuda': {trouble}")
    if trouble:
        log.info("running on the CPU: %s", trouble)
    return trouble


def _on_host(
    file: GGUFFile, config: Config, *, threads: int, sequences: int, kv: str, tell: Tell, context: int | None
) -> Model:
    tell("memory")
    pages, fits = n_pages(config, context=context, sequences=sequences, kv=kv)
    rows = CHUNK + PENDING * sequences
    config = replace(config, context=fits)
    return Model(file, config, pages=pages, slots=sequences + 1, kv=kv, threads=threads, rows=rows)


def _on_gpu(file: GGUFFile, config: Config, **settings: Any) -> "DeviceModel":
    from dflash.model.cuda.load import load_on_gpu

    return load_on_gpu(file, config, **settings)


def _check(device: str, threads: int | None, context: int | None, sequences: int, kv: str) -> None:
    if device not in DEVICES:
        raise Unsupported(f"device {device!r}: must be one of {', '.join(DEVICES)}")
    if kv not in KV_TYPES:
        raise RequestError(f"kv is {kv!r}, must be one of {', '.join(KV_TYPES)}")
    for what, value in (("threads", threads), ("context", context), ("sequences", sequences)):
        if value is not None and value < 1:
            raise RequestError(f"{what} is {value}, must be at least 1")
    if sequences > MAX_SEQUENCES:
        raise RequestError(f"sequences is {sequences}, must be at most {MAX_SEQUENCES}")


def _template(file: GGUFFile, tokenizer: Tokenizer) -> ChatTemplate | None:
    source = Keys(file.metadata, "tokenizer").text("chat_template", None)
    return None if source is None else ChatTemplate(source, tokens=tokenizer.special_texts())


class _Silent(tqdm):
    """A bar that draws nothing."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **{**settings, "disable": True})
