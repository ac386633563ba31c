"""Frequencies of a model's rotary embedding, scaled to a longer context if its file says so."""

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError
from dflash.model.config import Config
from dflash.model.config_sizes import RopeScaling
from dflash.model.weights import TargetTensors


class Rotation(Protocol):
    """Rotary settings of a configuration: number of rotated dimensions, base, and scaling."""

    @property
    def n_rot(self) -> int:
        """Number of rotated elements of a head, even. Read once, when a model or a draft model is built."""

    @property
    def rope_base(self) -> float:
        """Base of the frequencies. Read once, when a model or a draft model is built."""

    @property
    def rope_scaling(self) -> RopeScaling | None:
        """Scaling to a longer context; None for none. Read once, when a model or a draft model is built."""


def model_frequencies(config: Config, weights: TargetTensors) -> tuple[NDArray[np.float32], float]:
    """Return the `inverse_frequencies` of layers without a window, divided by ``rope_freqs.weight`` where a file has it."""
    inv_freq, gain = inverse_frequencies(config)
    if "rope_freqs.weight" in weights:
        inv_freq = inv_freq / weights.vector("rope_freqs.weight")
    return inv_freq, gain


def inverse_frequencies(config: Rotation) -> tuple[NDArray[np.float32], float]:
    """Return radians per position of each rotated pair, and a gain for cosine and sine.

    Returns inv_freq: float32 (n_rot / 2,); ``base ** (-2 j / n_rot)``, divided by the factor with linear scaling. With YaRN
        and in Llama 3, slow pairs are divided, fast pairs are unchanged, and pairs between are blended.
    Returns gain: 1, except with YaRN.
    Raises FormatError if the base is too small for the scaling.

    References
    ----------
    Peng, Quesnelle, Fan, Shippole 2023, YaRN, arXiv 2309.00071.
    """
    n = config.n_rot
    exponents = np.arange(0, n, 2, dtype=np.float32) / np.float32(n)
    inv_freq = (1.0 / np.float32(config.rope_base) ** exponents).astype(np.float32)
    scaling = config.rope_scaling
    if scaling is None or scaling.factor == 1:
        return inv_freq, 1.0
    if scaling.kind == "linear":
        return (inv_freq / np.float32(scaling.factor)).astype(np.float32), 1.0

    if scaling.kind == "llama3":
        turns = scaling.original_context * inv_freq / np.float32(2 * math.pi)
        share = np.clip((turns - scaling.beta_slow) / (scaling.beta_fast - scaling.beta_slow), 0, 1)
        return (inv_freq * ((1 - share) / scaling.factor + share)).astype(np.float32), 1.0

    smallest = RopeScaling.smallest_base(scaling)
    if config.rope_base < smallest:
        # readers refuse such a file, but some draft models get the rotation base of their target afterwards
        raise FormatError(f"the rotation base is {config.rope_base:g}, must be at least {smallest:g} with YaRN")

    def pair_of(turns: float) -> float:
        """Return the index (real-valued) of the pair that makes `turns` turns over the original context."""
        return n * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(config.rope_base))

    low = max(math.floor(pair_of(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_of(scaling.beta_slow)), n - 1)
    ramp = np.clip((np.arange(n // 2) - low) / max(high - low, 0.001), 0, 1)
    kept = (1 - ramp) * scaling.ext_factor
    blended = inv_freq / scaling.factor * (1 - kept) + inv_freq * kept
    return blended.astype(np.float32), scaling.attn_factor
