"""An EAGLE-3 head on the CPU."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.cpu.jit import use_threads
from dflash.kernels.formats import Matrix
from dflash.model.draft.files.source import Source
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.eagle.config import EagleConfig
from dflash.model.eagle.network import eagle, eagle_features
from dflash.model.model import Model
from dflash.model.recurrent_head import RecurrentHead, Rows
from dflash.model.run.cpu import NO_BATCH, Host
from dflash.model.run.joined import HostPass
from dflash.model.run.memory import NO_MEMORY
from dflash.model.weights import SharedTensors

Floats = NDArray[np.float32]


class EagleHead(RecurrentHead):
    """EAGLE-3 head; its features are the outputs of some layers of the target, side by side.

    config: configuration that was fitted to the target.
    source: weights of the head; closed with it.
    embedding, output: embedding and LM head: the head's own, or the target's.

    ``h = fc features``, with norms before `fc` as the configuration says. The layer reads rows of twice the width: ``a =
    attention [rms(embedding); rms(h)]``, ``x = h + a`` or ``x = rms(h) + a``, ``x = x + feed_forward(rms(x))``. The logits
    of the next token are ``head rms(x)``. For further draft tokens, `x` or ``rms(x)`` replaces `h`.

    References
    ----------
    EAGLE-3, arXiv 2503.01840.
    """

    def __init__(
        self, model: Model, config: EagleConfig, source: Source, embedding: Matrix, output: Matrix, *, known: Vocabulary
    ) -> None:
        self.config, self._source = config, source
        self.target_layer_ids, n = config.target_layer_ids, len(config.target_layer_ids)
        block, n_features = config.block(model.config.context), n * config.target_width
        tensors = SharedTensors(source, {"token_embd.weight": embedding})
        networks = eagle(config, block, drafts=True), eagle(config, block, drafts=False)
        super().__init__(model, block, tensors, output, networks, known=known, n_features=n_features)
        program, given, fused = eagle_features(config)
        host = Host(program, source, NO_MEMORY, self.rows, eps=config.norm_eps)
        self._fuse, self._given, self._fused = HostPass(program, host), [host[each] for each in given], host[fused]

    def features_at(self, features: Mapping[int, Floats], rows: Sequence[Rows], *, prompt: bool) -> list[Floats]:  # noqa: ARG002
        """See `RecurrentHead.features_at`."""
        return [np.concatenate([features[layer][each] for layer in self.target_layer_ids], axis=1) for each in rows]

    def close(self) -> None:
        """Close the files of the head."""
        self._source.close()

    def _project(self, features: Floats) -> Floats:
        use_threads(self.threads)
        n = len(features)
        for given, part in zip(self._given, np.split(features, len(self._given), axis=1), strict=True):
            given[:n] = part
        self._fuse(NO_BATCH, n)
        return self._fused[:n]
