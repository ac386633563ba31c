"""Shapes of blocks that attend over a q8_0 cache on a GPU: one kernel for GPUs before Hopper, two for Hopper."""

from typing import Any, NamedTuple

from dflash.errors import KernelError
from dflash.kernels.gpu.driver import tensor_map
from dflash.kernels.kv_types import SCALES

TILE = 64
"""Positions of a tile, in all kernels."""

_BLOCK, _WARPS, _UNPACK = "decode_q8_0", "decode_q8_0_warps", "decode_q8_0_hopper"
_RINGS, _COPIED = 8, 16  # of a block of _WARPS: warps, each with a ring of copies; positions of a copy


class QuantizedTiles(NamedTuple):
    """Shape of a block.

    Parameters
    ----------
    kernel : str
        Name of the function and of its file.
    queries : int
        Queries of a tile.
    slots : int
        Tiles of 64 keys or values in shared memory; of a kernel whose warps work alone, copies of 16 in the ring of each.
    packed_slots : int
        Tiles of bytes that are unpacked to those.
    """

    kernel: str
    queries: int
    slots: int
    packed_slots: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 2 * self.queries + 128 if self.kernel == _UNPACK else 256

    def constants(self) -> dict[str, int]:
        """Return the macros of the kernel."""
        made = {"TILE_KV": TILE, "TILE_Q": self.queries, "STAGES": self.slots}
        return made | ({"RAW_STAGES": self.packed_slots} if self.kernel == _UNPACK else {})

    def shared(self, width: int) -> int:
        """Return the bytes of shared memory for heads of `width`."""
        head = width + SCALES
        if self.kernel == _WARPS:
            return _RINGS * self.slots * _COPIED * head + self.queries * (2 * width + 32)
        if self.kernel == _UNPACK:
            return -(-width // 64) * 128 * (self.queries + self.slots * TILE) + self.packed_slots * TILE * head + 1024
        spans = -(-width // 128)
        return self.slots * TILE * head + self.queries * (256 * spans + 272 * spans + 144 + 8)

    def argument(self, cache: Any) -> Any:
        """Return the kernel's argument for keys or values, int8 (pages, PAGE, KV, D + 16): the bytes or a tensor map."""
        if self.kernel == _BLOCK:
            return cache.view("uint8")
        words = cache.reshape(cache.shape[0] * cache.shape[1], -1).view("uint32")
        return tensor_map(words, (_COPIED if self.kernel == _WARPS else TILE, cache.shape[3] // 4))


HOPPER = [
    QuantizedTiles(_WARPS, 8, 6),
    QuantizedTiles(_WARPS, 16, 6),
    QuantizedTiles(_UNPACK, 64, 3, 5),
    QuantizedTiles(_UNPACK, 128, 3, 3),
]
BEFORE_HOPPER = [QuantizedTiles(_BLOCK, 8, 5), QuantizedTiles(_BLOCK, 32, 3)]
"""Shapes by their queries, chosen by the room in shared memory of heads of 256 values."""


def quantized_tiles(queries: int, group: int, *, hopper: bool) -> QuantizedTiles:
    """Return the shape for at least `queries` queries of a sequence; the bits of a row do not depend on that number.

    Raises
    ------
    KernelError
        If the `group` heads that share a KV head do not fit in the largest tile.
    """
    shapes = HOPPER if hopper else BEFORE_HOPPER
    if group > shapes[-1].queries:
        raise KernelError(f"attend: {group} query heads share a KV head, at most {shapes[-1].queries} may with a q8_0 cache")
    return next((shape for shape in shapes if shape.queries >= max(queries, group)), shapes[-1])
