"""Weights of a file by name, in the file's packed format."""

from collections.abc import Callable, Collection, Mapping
from copy import copy
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.formats import Matrix
from dflash.kernels.moe import Experts, SigmoidRouting
from dflash.model.config import Config
from dflash.model.gguf.architectures import BIASES
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.header import Value
from dflash.model.gguf.part import TensorInfo
from dflash.model.gguf.tensor_check import match_tensors, rows_of_parts


class HostTensors(Protocol):
    """Tensors in host memory: `Weights` of a model, or the `Source` of a draft model."""

    def matrix(self, name: str) -> Matrix:
        """Return a matrix. Called once, when the model is built."""

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a small tensor. Called once, when the model is built."""


class LayerTensors(HostTensors, Protocol):
    """Tensors of a layer with attention."""

    def matrices(self, *names: str, fused: str, rows: tuple[int, ...]) -> tuple[Matrix, ...]:
        """Return several matrices; where the file stores them fused in one, its row ranges. Called once, as `matrix`."""


class TargetTensors(HostTensors, Protocol):
    """Tensors of a target model, or of one of its blocks, of which some are optional."""

    def __contains__(self, name: str) -> bool:
        """Return whether the file has a tensor. Called when the model is built."""


class Weights:
    """Tensors of a checked file, or of one of its blocks.

    file: open; its mapping stays valid as long as a weight is in use.
    config: configuration of the same file.
    trunk: false for a file that holds only the MTP block.
    Raises FormatError if a tensor is missing or has a wrong shape.
    unused: tensors of the file that the model does not need.
    """

    def __init__(self, file: GGUFFile, config: Config, *, trunk: bool = True) -> None:
        known = match_tensors(config, file.tensors, trunk=trunk).known
        self._file, self._tensors, self._prefix = file, known, ""
        self._gathered = {
            name: (fused.name, rows)
            for fused in config.blocks.fused
            if fused.runs
            for name, rows in rows_of_parts(config, fused).items()
        }
        self._row_order = row_order(config)

    @property
    def tensors(self) -> Collection[TensorInfo]:
        """Tensors of the file that the model uses."""
        return self._tensors.values()

    @property
    def path(self) -> Path:
        """The file; of a split one the first part."""
        return self._file.path

    @property
    def metadata(self) -> Mapping[str, Value]:
        """Metadata of the file."""
        return self._file.metadata

    def block(self, i: int) -> "Weights":
        """Return the weights of block i, named without ``blk.i.``."""
        weights = copy(self)
        weights._prefix = f"blk.{i}."
        return weights

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._tensors

    def matrix(self, name: str) -> Matrix:
        """Return a matrix, or a stack of matrices, without unpacking it; a vector becomes one row.

        A matrix whose rows the file holds in another order, or interleaved with another matrix, is a copy of its rows.
        """
        if name not in self and name in self._gathered:
            whole, rows = self._gathered[name]
            return self.matrix(whole).gathered(rows, self._prefix + name)
        tensor = self._tensors[self._prefix + name]
        data = self._file.data(tensor.name)
        matrix = Matrix(data.reshape(1, -1) if data.ndim == 1 else data, tensor.type, self._prefix + name)
        return matrix.gathered(self._row_order[name], matrix.name) if name in self._row_order else matrix

    def matrices(self, *names: str, fused: str, rows: tuple[int, ...]) -> tuple[Matrix, ...]:
        """Return several matrices; where the file stores them fused in one, the row ranges of that."""
        if fused not in self or names[0] in self:
            return tuple(self.matrix(name) for name in names)
        whole, ends = self.matrix(fused), np.cumsum(rows)
        return tuple(whole.rows(slice(end - n, end)) for end, n in zip(ends.tolist(), rows, strict=True))

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a small tensor as float32."""
        return np.ascontiguousarray(self._file.array(self._tensors[self._prefix + name].name))


def row_order(config: Config) -> dict[str, NDArray[np.intp]]:
    """Return the rows of the file's query and key projections in the order of the kernels; nothing if they have it already.

    The kernels rotate element j of a head with element ``j + n_rot / 2``; files with interleaved pairs, 2 j with 2 j + 1.
    """
    if not config.blocks.interleaved:
        return {}
    head = np.arange(config.head_size)
    pairs = head[: config.n_rot].reshape(-1, 2)
    order = np.concatenate([pairs.T.ravel(), head[config.n_rot :]])
    heads = {"attn_q.weight": config.heads, "attn_k.weight": config.kv_heads}
    return {name: (np.arange(n)[:, None] * config.head_size + order).ravel() for name, n in heads.items()}


def head_norms(weights: Any, config: Config) -> tuple[Any, Any]:
    """Return the gains of the norms of query and key heads of a block; None for each where heads have no norm."""
    if "attn_q_norm.weight" not in config.blocks.full:
        return None, None
    return weights.vector("attn_q_norm.weight"), weights.vector("attn_k_norm.weight")


def attention_bias(weights: HostTensors, config: Config) -> NDArray[np.float32] | None:
    """Return the biases of the query, key and value heads of a block, one after the other; None in most architectures."""
    names = [name for name in BIASES if name in config.blocks.full]
    return np.concatenate([weights.vector(name) for name in names]) if names else None


def experts_of(weights: Any, config: Config, *, router: Callable[[str], Any]) -> Experts:
    """Return the experts of a block from the matrices of `weights`, and its routers from `router`, by name."""
    names, shared = config.blocks.ffn, config.blocks.shared
    gate, up = weights.matrices(
        "ffn_gate_exps.weight", "ffn_up_exps.weight", fused="ffn_gate_up_exps.weight", rows=(config.expert_ffn,) * 2
    )
    return Experts(
        router=router("ffn_gate_inp.weight"),
        gate=gate,
        up=up,
        down=weights.matrix("ffn_down_exps.weight"),
        shared_router=router("ffn_gate_inp_shexp.weight") if "ffn_gate_inp_shexp.weight" in names else None,
        shared_gate=weights.matrix("ffn_gate_shexp.weight") if shared else None,
        shared_up=weights.matrix("ffn_up_shexp.weight") if shared else None,
        shared_down=weights.matrix("ffn_down_shexp.weight") if shared else None,
        n_used=config.experts_used,
        routing=SigmoidRouting(weights.vector("exp_probs_b.bias"), config.expert_scale) if config.blocks.sigmoid else None,
    )
