"""Match the tensors that a model needs with those of a file."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError, Unsupported
from dflash.model.config import Config
from dflash.model.gguf.architectures import (
    ALIASES,
    DENSE,
    HEAD,
    KEYS_AND_VALUES,
    MTP,
    MTP_OPTIONAL,
    OUTSIDE,
    PER_LAYER,
    PER_LAYER_OUTSIDE,
    Architecture,
    Fused,
    Shapes,
)
from dflash.model.gguf.header import quoted
from dflash.model.gguf.part import TensorInfo

_SHOWN = 8

_ENCODERS = ("v.", "mm.", "a.")
"""Prefixes of tensors that encode images and audio; text does not pass through them."""


class Matched(NamedTuple):
    """Tensors of a file, split into those that the model needs and others.

    known: tensors that the model needs, by the name in dflash: the file's name, except ``ssm_dt.bias`` for ``ssm_dt``.
    unknown: names in the file of tensors that the model does not use: those of encoders of images and audio.
    """

    known: dict[str, TensorInfo]
    unknown: tuple[str, ...]


def expected_tensors(config: Config, present: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Return every tensor that a model needs.

    present: names of the tensors in a file. They determine which projections are expected in fused form, and which optional
        tensors are expected.
    """
    architecture, axes = config.blocks, _axes(config)
    shapes = OUTSIDE | ({} if config.tied else HEAD) | architecture.outside
    shapes |= PER_LAYER_OUTSIDE if config.per_layer else {}
    shapes = {name: shape for name, shape in shapes.items() if name not in architecture.optional or name in present}
    expected = {name: _sized(shape, axes) for name, shape in shapes.items()}
    for block, prefix in ((block, f"blk.{block}.") for block in range(config.n_blocks)):
        axes |= _layer_axes(config, block)
        blocks = _block(config, architecture, block, prefix, present)
        expected |= {prefix + name: _sized(shape, axes) for name, shape in blocks}
    return expected


def _sized(shape: str, axes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(axes[axis] for axis in shape.split())


def match_tensors(config: Config, tensors: Mapping[str, TensorInfo], *, trunk: bool = True) -> Matched:
    """Check that a file holds every tensor of a model, in its shape.

    trunk: false for a file that holds only the MTP block, whose trunk is in another file.
    """
    named = {_meant(name, tensors): tensor for name, tensor in tensors.items()}
    expected = expected_tensors(config, named.keys())
    if not trunk:
        skipped = tuple(f"blk.{block}." for block in range(config.n_layers))
        expected = {name: shape for name, shape in expected.items() if not name.startswith(skipped)}
    _refuse_missing([name for name in expected if name not in named], config)
    for name, shape in expected.items():
        if trimmed(named[name].shape) != trimmed(shape):
            raise FormatError(f"tensor {quoted(named[name].name)} has shape {named[name].shape}, must have {shape}")
    unknown = tuple(named[name].name for name in named if name not in expected)
    _refuse_scales(unknown, expected)
    if trunk:
        _refuse_unused([name for name in unknown if not name.startswith(_ENCODERS)], config)
    return Matched({name: named[name] for name in expected}, unknown)


def rows_of_parts(config: Config, fused: Fused) -> dict[str, NDArray[np.intp] | slice]:
    """Return for each part of a fused tensor the rows of the tensor that it consists of, in its own order."""
    axes, blocks = _axes(config), config.blocks
    if not fused.runs:
        shapes = blocks.full | blocks.ffn | blocks.beside
        stops = np.cumsum([0, *(axes[shapes[name].split()[-2]] for name in fused.parts if name in shapes)]).tolist()
        return {name: slice(*ends) for name, ends in zip(fused.parts, pairwise(stops), strict=False)}
    ends = np.cumsum([axes[axis] for axis, _ in fused.runs])
    heads = np.arange(config.delta_key_heads)[:, None] * ends[-1]
    rows: dict[str, list[NDArray[np.intp]]] = {name: [] for name in fused.parts}
    for (axis, part), end in zip(fused.runs, ends, strict=True):
        rows[fused.parts[part]].append((heads + np.arange(end - axes[axis], end)).ravel())
    return {name: np.concatenate(found) for name, found in rows.items()}


def _axes(config: Config) -> dict[str, int]:
    query, kv = config.heads * config.head_size, config.kv_heads * config.head_size
    values = config.delta_value_heads * config.delta_size
    run, conv = config.delta_value_heads // max(config.delta_key_heads, 1), 2 * config.delta_key_heads * config.delta_size
    return {
        "H": config.width,
        "2H": 2 * config.width,
        "V": config.n_vocab,
        "Q": query,
        "2Q": 2 * query,
        "KV": kv,
        "Q+2KV": query + 2 * kv,
        "2Q+2KV": 2 * query + 2 * kv,
        "HEAD": config.head_size,
        "HEAD/2": config.n_rot // 2,
        "1": 1,
        "P": config.per_layer,
        "LP": config.n_layers * config.per_layer,
        "HV": config.delta_value_heads,
        "D": config.delta_size,
        "2HV": 2 * config.delta_value_heads,
        "R": run,
        "RD": run * config.delta_size,
        "Z": values,
        "CONV": conv + values,
        "CONV+Z": conv + 2 * values,
        "K": config.conv_width,
        "F": config.ffn,
        "E": config.experts,
        "FE": config.expert_ffn,
        "2FE": 2 * config.expert_ffn,
        "FS": config.shared_ffn,
    }


def _layer_axes(config: Config, block: int) -> dict[str, int]:
    """Return the sizes of axes that differ between layers."""
    if not config.layers:
        return {}
    layer = config.layers[block]
    query, kv = layer.heads * layer.head_size, layer.kv_heads * layer.head_size
    return {"Q": query, "KV": kv, "HEAD": layer.head_size, "F": layer.ffn, "GATE": layer.gate}


def _block(
    config: Config, architecture: Architecture, block: int, prefix: str, present: Collection[str]
) -> Iterator[tuple[str, str]]:
    is_mtp = block >= config.n_layers
    is_linear = not is_mtp and config.recurrent[block]
    is_dense = architecture.experts and config.layers and config.layers[block].ffn
    ffn = {architecture.ffn_norm: "H"} | DENSE if is_dense else architecture.ffn
    ffn = ffn | architecture.beside if config.experts else ffn
    shapes: Shapes = ((architecture.linear or {}) if is_linear else architecture.full) | ffn
    for fused in architecture.fused:
        separate = all(prefix + name in present for name in fused.parts)
        if shapes.keys() >= set(fused.parts) and prefix + fused.name in present and not separate:
            shapes = {name: shape for name, shape in shapes.items() if name not in fused.parts}
            shapes[fused.name] = fused.shape
    shapes = {name: shape for name, shape in shapes.items() if name not in architecture.optional}
    shapes |= {name: shape for name, shape in architecture.optional.items() if prefix + name in present}
    shapes |= PER_LAYER if config.per_layer else {}
    if config.layers and config.layers[block].source != block:
        shapes = {name: shape for name, shape in shapes.items() if name not in KEYS_AND_VALUES}
    if is_mtp:
        shapes = shapes | MTP | {name: shape for name, shape in MTP_OPTIONAL.items() if prefix + name in present}
    yield from shapes.items()


def _meant(name: str, tensors: Mapping[str, TensorInfo]) -> str:
    prefix, _, tail = name.rpartition(".")
    meant = f"{prefix}.{ALIASES[tail]}" if tail in ALIASES else name
    return name if meant in tensors else meant


def trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Remove leading axes of 1, which only some files have."""
    return trimmed(shape[1:]) if shape and shape[0] == 1 else shape


def listed(names: Sequence[str]) -> str:
    """Return the first names and the number of the others, for a message."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _refuse_missing(missing: list[str], config: Config) -> None:
    mtp_missing = any(name.startswith(f"blk.{config.n_layers}.") for name in missing)
    if "blk.0.attn_norm.weight" in missing and config.n_mtp and not mtp_missing:
        raise Unsupported("the file holds the MTP block alone, to be used beside the file of the trunk")
    if missing:
        raise FormatError(f"missing tensors ({len(missing)}): {listed(missing)}")


def _refuse_unused(unused: list[str], config: Config) -> None:
    if not unused:
        return
    hint = ""
    if any(".nextn." in name for name in unused):
        hint = f"; those of an MTP block need the key '{config.architecture}.nextn_predict_layers'"
    raise Unsupported(f"tensors that dflash does not use ({len(unused)}): {listed(unused)}{hint}")


def _refuse_scales(unknown: tuple[str, ...], expected: Mapping[str, tuple[int, ...]]) -> None:
    for name in unknown:
        weight, _, kind = name.rpartition(".")
        if kind in {"scale", "input_scale"} and weight + ".weight" in expected:
            raise Unsupported(f"tensor {quoted(name)}: weights with a scale of their own (NVFP4) are not run")
