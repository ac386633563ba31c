"""The MTP head of a model (NextN): one more block, which predicts the token after the next."""

from dataclasses import replace

from dflash.model.config import Config
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.gguf.file import GGUFFile
from dflash.model.model import Model
from dflash.model.network.heads import mtp
from dflash.model.recurrent_head import RecurrentHead
from dflash.model.weights import SharedTensors, TargetTensors


class MtpHead(RecurrentHead):
    """MTP head of a trunk; its features are the outputs of the trunk's last norm.

    model: the trunk, whose embedding, LM head, rotary frequencies and threads the head shares.
    file: the file that holds the block, if it is not the trunk's; closed with the head.

    ``x = eh_proj [rms(embedding(token)); rms(hidden)]``, then a block of full attention, then ``h = rms(x)``; ``head h`` are
    the logits of the next token. For further draft tokens, `h` replaces the trunk's hidden state.
    """

    def __init__(
        self, model: Model, weights: TargetTensors, config: Config, file: GGUFFile | None = None, *, known: Vocabulary
    ) -> None:
        self.config = config = replace(config, n_layers=1, recurrent=(False,))
        self._file, norm, head = file, "nextn.shared_head_norm.weight", "nextn.shared_head_head.weight"
        trunk = {"nextn.embed_tokens.weight": model.embedding, head: model.output}
        tensors = SharedTensors(
            weights,
            {name: matrix for name, matrix in trunk.items() if name not in weights},
            {} if norm in weights else {norm: model.weights.vector("output_norm.weight")},
        )
        networks = mtp(config, weights, drafts=True), mtp(config, weights, drafts=False)
        super().__init__(model, config, tensors, tensors.matrix(head), networks, known=known, n_features=config.width)

    def close(self) -> None:
        """Close the file if the head has its own."""
        if self._file is not None:
            self._file.close()
