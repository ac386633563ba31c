"""Memory traffic of a token, for comparison with a plain copy."""

from typing import NamedTuple

from dflash.kernels.ragged import PAGE
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.part import TensorInfo
from dflash.model.gguf.tensor_check import match_tensors
from dflash.model.state.budget import Need

_EMBEDDING = "token_embd.weight"


class Traffic(NamedTuple):
    """Bytes that plain decoding moves per token.

    weights: bytes read: all weights of the layers and the head once; of routed experts only as many as a token uses. The
        embedding counts only if it is also the head.
    state: bytes of recurrent and convolution state of a sequence, read and written.
    position: bytes of keys and values of one position, read.
    """

    weights: int
    state: int
    position: int

    @classmethod
    def of(cls, file: GGUFFile, config: Config, *, kv: str, device: str) -> "Traffic":
        """Compute the traffic from the header of a file.

        device: ``"cpu"`` or ``"cuda"``. On ``"cuda"`` tensors of types without a kernel are stored as F16.
        """
        need = Need.of(config, kv)
        tensors = match_tensors(config, file.tensors).known.values()
        weights = sum(_read(tensor, config, device) for tensor in tensors if _is_read(tensor.name, config))
        return cls(int(weights), 2 * need.state, need.page // PAGE)

    def at(self, depth: float) -> float:
        """Return the bytes for a token at position `depth`."""
        return self.weights + self.state + depth * self.position


def _is_read(name: str, config: Config) -> bool:
    """Return True if plain decoding reads the whole tensor. It reads one row of the embedding and no MTP block."""
    if name == _EMBEDDING:
        return config.tied
    return not name.startswith("blk.") or int(name.split(".")[1]) < config.n_layers


def _read(tensor: TensorInfo, config: Config, device: str) -> float:
    """Return the bytes of a tensor that one token reads."""
    n_bytes = tensor.device_bytes if device == "cuda" else tensor.n_bytes
    return n_bytes * config.experts_used / config.experts if "_exps." in tensor.name else n_bytes
