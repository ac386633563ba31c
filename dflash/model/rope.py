"""Frequencies of a model's rotary embedding, scaled to a longer context if its file says so."""

import math
from types import SimpleNamespace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError
from dflash.kernels.rope import angles
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


def tabulate(positions: NDArray[np.int32], inv_freq: NDArray[np.float32], gain: float, s: SimpleNamespace) -> None:
    """Fill `cos` and `sin` (N, R) of a workspace for rows at the given positions (N,)."""
    angles(positions, inv_freq, cos=s.cos, sin=s.sin)
    if gain != 1:
        s.cos *= gain
        s.sin *= gain


class RotaryTables:
    """Cosine and sine tables of a model: of its layers, and of those with a window if it has such.

    weights: read for ``rope_freqs.weight``, by which frequencies of layers without a window are divided where a file has it.
    """

    def __init__(self, config: Config, weights: TargetTensors) -> None:
        self._inv_freq, self._gain = model_frequencies(config, weights)
        window = config.window_rotation
        self._window_inv_freq = None if window is None else inverse_frequencies(window)[0]

    @property
    def plain(self) -> NDArray[np.float32] | None:
        """Frequencies (R,) if they alone determine the tables; None if there is a gain or a second pair of tables."""
        return self._inv_freq if self._gain == 1 and self._window_inv_freq is None else None

    def __call__(self, positions: NDArray[np.int32], s: SimpleNamespace) -> None:
        """Fill `cos` and `sin`, and `window_cos` and `window_sin`, for rows at the given positions (N,)."""
        tabulate(positions, self._inv_freq, self._gain, s)
        if self._window_inv_freq is not None:
            angles(positions, self._window_inv_freq, cos=s.window_cos, sin=s.window_sin)


def model_frequencies(config: Config, weights: TargetTensors) -> tuple[NDArray[np.float32], float]:
    """Return the `inverse_frequencies` of layers without a window, divided by ``rope_freqs.weight`` where a file has it."""
    inv_freq, gain = inverse_frequencies(config)
    if "rope_freqs.weight" in weights:
        inv_freq = inv_freq / weights.vector("rope_freqs.weight")
    return inv_freq, gain


def inverse_frequencies(config: Rotation) -> tuple[NDArray[np.float32], float]:
    """Return radians per position of each rotated pair, and a gain for cosine and sine.

    Returns inv_freq: float32 (n_rot / 2,); ``base ** (-2 j / n_rot)``, divided by the factor with linear scaling. With YaRN,
        slow pairs are divided, fast pairs are unchanged, and pairs between are blended.
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
