"""Load a model by name: file, tokenizer, chat template, memory and weights."""

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

from dflash.errors import Unsupported
from dflash.kernels.gpu import device as gpu
from dflash.kernels.kv_types import check_kv
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.keys import Keys
from dflash.model.loading.forks import check_fork
from dflash.model.loading.free_memory import free_memory
from dflash.model.loading.hub import resolve
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.short_memory import memory_errors
from dflash.model.model import CHUNK, Model
from dflash.model.numerics import Numerics, numerics_of
from dflash.model.protocols.target import TargetModel
from dflash.model.runnable import refuse_sizes
from dflash.model.split.names import device_kind, device_number
from dflash.model.state.budget import n_cores, n_pages
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.own_template import own_template
from dflash.model.text.spelled_tokens import SpelledTokens
from dflash.model.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from dflash.model.cuda.model import DeviceModel

log = logging.getLogger("dflash.load")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A loaded model with its file, tokenizer and chat template.

    file: open.
    model: computes logits from token ids; ``model.config.context`` is the most tokens of a sequence here.
    template: renders messages as text; None if the file has no template.
    sequences: sequences that may be open at a time. The model has one more slot, for scoring a given text beside them.
    trouble: reason why the model runs on the CPU although ``device="auto"`` prefers a GPU.
    gpu: CUDA device number if one was chosen. That GPU must be current in every thread that uses the model
        (`dflash.kernels.gpu.device.on`); None leaves a thread as it is.
    """

    file: GGUFFile
    model: "Model | DeviceModel"
    tokenizer: Tokenizer
    template: ChatTemplate | None
    sequences: int
    trouble: str | None = None
    gpu: int | None = None

    @property
    def kind(self) -> str:
        """Identifier of the kernels that the model uses: equal for models that share all compiled kernels."""
        return kernels_of(self.file, self.model.config, device=self.model.device, numerics=numerics_of(self.model))


class HostSettings(NamedTuple):
    """A file and settings on which the kernels of a model on the CPU depend."""

    file: GGUFFile
    config: Config
    kv: str
    threads: int


def kernels_of(file: GGUFFile, config: Config, *, device: str, numerics: Numerics) -> str:
    """Return an identifier of the kernels that a model uses: equal for models that share all compiled kernels."""
    types = sorted({tensor.type for tensor in file.tensors.values()})
    sizes = config.head_size, config.delta_size, config.conv_width, bool(config.experts)
    return f"{device} {config.architecture} {astuple(numerics)} {sizes} {types}"


def load_model(
    name: str | os.PathLike[str],
    settings: LoadSettings,
    *,
    progress: Tell | None = None,
    with_tokenizer: Callable[[Tokenizer], object] | None = None,
    before_kernels: Callable[[HostSettings], object] | None = None,
) -> Loaded:
    """Load a model, without an engine; `dflash.load` explains the errors.

    progress: called with the name of each phase before it begins. If given, downloads also show a progress bar.
    """
    check_fork()
    device = settings.target_device
    trouble, tell = _trouble(device), progress or (lambda _: None)
    on_host, number = bool(trouble) or device == "cpu", device_number(device)
    with memory_errors(name, "ask for fewer sequences, fewer pending rows or a smaller context"):
        path = resolve(name, progress=_ShownBar if progress else _Silent)
        tell("header")
        file = GGUFFile.open(path)
        try:
            config = Config.from_gguf(file.metadata, file.tensors, pending=settings.max_pending)
            config = replace(config, prefill=settings.prefill)
            refuse_sizes(config, "cpu" if on_host else "cuda")
            if config.prefill != "f16" and (on_host or len(settings.gpus) > 1):
                place = "the CPU" if on_host else "several GPUs"
                raise Unsupported(f"prefill {config.prefill!r}: needs one Hopper GPU, the model is loaded on {place}")
            for size in {config.head_size, *(size for _, size in config.kv_shapes.values())}:
                check_kv(settings.kv, size, "cpu" if on_host else "cuda")
            tell("tokenizer")
            tokenizer = Tokenizer.from_gguf(file.metadata)
            if with_tokenizer is not None:
                with_tokenizer(tokenizer)
            spelled = None if settings.trusted_messages else tokenizer.spelled_tokens()
            if settings.chat_template is None:
                template = _template(file, tokenizer, spelled)
            else:
                template = own_template(settings.chat_template, tokenizer, spelled)
            load: Callable[..., Model | DeviceModel]
            if on_host:
                load = partial(_on_host, before_kernels=before_kernels or (lambda _: None))
            elif len(settings.gpus) > 1:
                from dflash.model.cuda.split.load import load_on_gpus as load
            else:
                from dflash.model.cuda.load import load_on_gpu as load
            with gpu.on(number):
                model = load(file, config, settings, threads=settings.threads or n_cores(), tell=tell)
            return Loaded(file, model, tokenizer, template, settings.sequences, trouble, number)
        except BaseException:
            file.close()
            raise


def split_overview(file: GGUFFile, settings: LoadSettings) -> dict[str, Any]:
    """Describe what each GPU of a split would have, by the memory that is free now; loads nothing.

    Returns: ``split``, ``pages``, ``context``, and ``devices``, a list with layers and bytes of each; JSON values.
    """
    _trouble("cuda")
    from dflash.model.cuda.split.load import gpu_plan

    config = Config.from_gguf(file.metadata, file.tensors, pending=settings.max_pending)
    refuse_sizes(config, "cuda")
    check_kv(settings.kv, config.head_size, "cuda")
    plan = gpu_plan(file, config, settings)
    return {
        "split": plan.kind,
        "pages": plan.n_pages,
        "context": plan.context,
        "devices": [part.as_dict() for part in plan.devices],
    }


def loaded_model(model: TargetModel) -> "Model | DeviceModel":
    """Return a target as the model of a file that it is, for drafters that read its weights and metadata."""
    if isinstance(model, Model):
        return model
    if model.device == "cuda":
        from dflash.model.cuda.model import DeviceModel

        if isinstance(model, DeviceModel):
            return model
    raise Unsupported(f"this strategy needs a model that was loaded from a file, got a {type(model).__name__}")


def _trouble(device: str) -> str | None:
    """Return the reason why no GPU is used; None if one is used or ``"cpu"`` was requested."""
    number = device_number(device)
    trouble = None if device == "cpu" else gpu.trouble() if number is None else gpu.trouble(number)
    if trouble and device_kind(device) == "cuda":
        raise Unsupported(f"device {device!r}: {trouble}")
    if trouble:
        log.info("running on the CPU: %s", trouble)
    return trouble


def _on_host(
    file: GGUFFile,
    config: Config,
    settings: LoadSettings,
    *,
    threads: int,
    tell: Tell,
    before_kernels: Callable[[HostSettings], object],
) -> Model:
    tell("kernels")
    before_kernels(HostSettings(file, config, settings.kv, threads))
    if not settings.mmap:
        tell("weights")
        file.read(free_memory())
    tell("memory")
    pages, fits = n_pages(config, settings)
    rows = CHUNK + config.pending * settings.sequences
    config = replace(config, context=fits)
    return Model(file, config, pages=pages, slots=settings.sequences + 1, kv=settings.kv, threads=threads, rows=rows)


def _template(file: GGUFFile, tokenizer: Tokenizer, spelled: SpelledTokens | None) -> ChatTemplate | None:
    source = Keys(file.metadata, "tokenizer").text("chat_template", None)
    return None if source is None else ChatTemplate(source, tokens=tokenizer.special_texts(), spelled=spelled)


class _ShownBar(tqdm):
    """A progress bar on a terminal or in a notebook; a log gets none."""

    def __init__(self, *args: object, **settings: object) -> None:
        shown = sys.stderr.isatty() or "ipykernel" in sys.modules
        super().__init__(*args, **settings if shown else {**settings, "disable": True})


class _Silent(tqdm):
    """A progress bar that shows nothing."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **{**settings, "disable": True})
