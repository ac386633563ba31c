"""Weights of a file by name, in the file's packed format."""

import re
from collections.abc import Callable, Collection, Mapping
from copy import copy
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.formats import Matrix
from dflash.kernels.moe import Experts, SigmoidRouting
from dflash.model.config import Config
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


class TargetTensors(HostTensors, Protocol):
    """Tensors of a target model, or of one of its blocks, of which some are optional."""

    def __contains__(self, name: str) -> bool:
        """Return whether the file has a tensor. Called when the model is built."""


class Weights:
    """Tensors of a checked file, or of one of its blocks. trunk: false for a file that holds only the MTP block."""

    def __init__(self, file: GGUFFile, config: Config, *, trunk: bool = True) -> None:
        known = match_tensors(config, file.tensors, trunk=trunk).known
        self._file, self._tensors, self._prefix = file, known, ""
        self._parts = {
            name: (fused.name, rows) for fused in config.blocks.fused for name, rows in rows_of_parts(config, fused).items()
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

        A matrix that the file holds fused with others is a view of its rows; if the file has them in another order, or
        interleaved, a copy.
        """
        whole, short = self._prefix + name, re.sub(r"^blk\.\d+\.", "", name)
        if name not in self and short in self._parts:
            fused, rows = self._parts[short]
            matrix = self.matrix(name.removesuffix(short) + fused)
            return matrix.rows(rows) if isinstance(rows, slice) else matrix.gathered(rows, whole)
        tensor = self._tensors[whole]
        data = self._file.data(tensor.name)
        matrix = Matrix(data.reshape(1, -1) if data.ndim == 1 else data, tensor.type, whole)
        return matrix.gathered(self._row_order[short], whole) if short in self._row_order else matrix

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a small tensor as float32."""
        return np.ascontiguousarray(self._file.array(self._tensors[self._prefix + name].name))


class SharedTensors:
    """Tensors of a file, but those of `matrices` and `vectors`, which it takes from elsewhere."""

    def __init__(
        self, own: HostTensors, matrices: Mapping[str, Matrix], vectors: Mapping[str, NDArray[np.float32]] | None = None
    ) -> None:
        self._own, self._matrices, self._vectors = own, matrices, vectors or {}

    def matrix(self, name: str) -> Matrix:
        """See `HostTensors.matrix`."""
        return self._matrices[name] if name in self._matrices else self._own.matrix(name)

    def vector(self, name: str) -> NDArray[np.float32]:
        """See `HostTensors.vector`."""
        return self._vectors[name] if name in self._vectors else self._own.vector(name)


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


def experts_of(weights: Any, config: Config, prefix: str = "", *, router: Callable[[str], Any]) -> Experts:
    """Return the experts of a block, whose tensors begin with `prefix`, and its routers from `router`, by name."""
    blocks, matrix, parts = config.blocks, weights.matrix, ("gate", "up", "down")
    shared_router, bias = "ffn_gate_inp_shexp.weight", f"{prefix}exp_probs_b.bias"
    gate, up, down = (matrix(f"{prefix}ffn_{part}_exps.weight") for part in parts)
    shared = [matrix(f"{prefix}ffn_{part}_shexp.weight") if blocks.shared else None for part in parts]
    return Experts(
        router(f"{prefix}ffn_gate_inp.weight"),
        gate,
        up,
        down,
        router(prefix + shared_router) if shared_router in blocks.ffn else None,
        shared[0],
        shared[1],
        shared[2],
        config.experts_used,
        SigmoidRouting(weights.vector(bias), config.expert_scale) if blocks.sigmoid else None,
    )
