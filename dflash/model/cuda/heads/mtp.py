"""The MTP head of a model on a GPU."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dflash.kernels.gpu import device
from dflash.kernels.gpu.staging import Staging
from dflash.model.config import Config
from dflash.model.cuda.heads.draft_loop import HeadContext
from dflash.model.cuda.heads.reading import BlockContext, HeadBlock
from dflash.model.cuda.heads.recurrent_head import DeviceRecurrentHead
from dflash.model.cuda.model import DeviceModel
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.gguf.file import GGUFFile
from dflash.model.network.heads import mtp
from dflash.model.weights import TargetTensors


class DeviceMtpHead(DeviceRecurrentHead):
    """MTP head on the GPU of its trunk: reads the trunk's tokens, shifted by one, then drafts from its own states.

    file: the file that holds the block, if it is not the trunk's; closed with the head.
    """

    def __init__(
        self,
        model: DeviceModel,
        weights: DeviceWeights[Any] | TargetTensors,
        config: Config,
        file: GGUFFile | None = None,
        *,
        known: Vocabulary,
        common: Sequence[Vocabulary] = (),
    ) -> None:
        self.config = config = replace(config, n_layers=1, recurrent=(False,))
        self._file = file
        super().__init__(model, config, common)
        host = weights.host if isinstance(weights, DeviceWeights) else weights
        with device.device_errors("the MTP head"), Staging(model.threads) as staging:
            own, theirs = DeviceWeights(host, staging), model.weights
            output = "token_embd.weight" if model.config.tied else "output.weight"
            embedding, head = (
                own.matrix(name) if name in host else theirs.matrix(shared)
                for name, shared in (
                    ("nextn.embed_tokens.weight", "token_embd.weight"),
                    ("nextn.shared_head_head.weight", output),
                )
            )
            norm = "nextn.shared_head_norm.weight"
            last = own.vector(norm) if norm in host else theirs.vector("output_norm.weight")
            block = BlockContext(own, config, embedding, self.pools, model.scratch())
            network = mtp(config, host, drafts=True)
            reading = partial(HeadBlock, block, network, "nextn.embed_tokens.weight")
            append = mtp(config, host, drafts=False)
            self.bind(HeadContext(block, head, last, known, common, reading), append, "nextn.embed_tokens.weight")
        self.weights = own

    def close(self) -> None:
        """Close the file if the head has its own."""
        if self._file is not None:
            self._file.close()
