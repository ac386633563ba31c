"""Find the MTP head of a model: in its own file, or in one beside it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.errors import Unsupported
from dflash.model.config import Config
from dflash.model.draft.files.gguf_dialects import DIALECTS
from dflash.model.draft.files.open_draft import PARTS
from dflash.model.draft.vocabulary import common, first
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.keys import Keys
from dflash.model.loading.hub import resolve
from dflash.model.loading.mtp_folder import MtpFolder
from dflash.model.loading.short_memory import memory_errors
from dflash.model.mtp import MtpHead
from dflash.model.runnable import refuse_sizes
from dflash.model.weights import Weights

if TYPE_CHECKING:
    from dflash.model.cuda.heads import DeviceMtpHead
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.cuda.weights import DeviceWeights
    from dflash.model.model import Model


def load_mtp(
    model: "Model | DeviceModel", name: str | os.PathLike[str] | None = None, *, draft_vocab: int | None = None
) -> "MtpHead | DeviceMtpHead":
    """Load the MTP head that goes with a model.

    name: name of a file that holds the head, as for `load_model`, or a folder of safetensors; by default the trunk's own
        file.
    """
    if name is None and not model.config.n_mtp:
        raise Unsupported("MTP: the model's file holds no MTP block; name a file that does, such as an mtp-*.gguf")
    with memory_errors(name or "the model's MTP head", "use another strategy"):
        if name is None:
            return _head(model, model.weights, model.config, None, draft_vocab)
        path = resolve(name, folders=_is_folder(name))
        if path.is_dir() or path.suffix in PARTS:
            block = MtpFolder(path if path.is_dir() else path.parent, model.config)
            return _bound(model, block, model.config, None, draft_vocab)
        file = GGUFFile.open(path)
        try:
            _refuse_draft(file, str(name))
            config = Config.from_gguf(file.metadata, file.tensors)
            _check(model.config, config, str(name))
            refuse_sizes(config, model.device)
            return _head(model, Weights(file, config, trunk=False), config, file, draft_vocab)
        except BaseException:
            file.close()
            raise


def _head(
    model: "Model | DeviceModel",
    weights: "Weights | DeviceWeights[Weights]",
    config: Config,
    file: GGUFFile | None,
    n: int | None,
) -> "MtpHead | DeviceMtpHead":
    return _bound(model, weights.block(config.n_layers), config, file, n)


def _bound(
    model: "Model | DeviceModel",
    block: "Weights | DeviceWeights[Weights] | MtpFolder",
    config: Config,
    file: GGUFFile | None,
    n: int | None,
) -> "MtpHead | DeviceMtpHead":
    known = first(model, n)
    if model.device == "cuda":
        from dflash.model.cuda.heads import DeviceMtpHead

        return DeviceMtpHead(model, block, config, file, known=known, common=common(model) if n is None else ())
    assert isinstance(block, Weights | MtpFolder), "weights of a model on the CPU"
    return MtpHead(model, block, config, file, known=known)


def _is_folder(name: str | os.PathLike[str]) -> bool:
    """Return True if a name is that of a local folder of safetensors, or of a file in one."""
    path = Path(name).expanduser()
    return path.is_dir() or path.suffix in PARTS


def _refuse_draft(file: GGUFFile, name: str) -> None:
    kind = Keys(file.metadata, "general").text("architecture", None)
    if kind in DIALECTS:
        raise Unsupported(f"a draft model ({kind}), not an MTP head: use it with dflash, dspark or ddtree", path=name)


def _check(trunk: Config, config: Config, name: str) -> None:
    if not config.n_mtp:
        raise Unsupported("holds no MTP block", path=name)
    for what in ("architecture", "width", "n_vocab"):
        wanted, got = getattr(trunk, what), getattr(config, what)
        if got != wanted:
            raise Unsupported(f"its MTP block is for another model: its {what} is {got}, the model's {wanted}", path=name)
