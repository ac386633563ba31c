"""Shapes of blocks that attend over a quantized cache on a GPU."""

from typing import Any, NamedTuple

from dflash.errors import KernelError
from dflash.kernels.gpu.driver import tensor_map
from dflash.kernels.kv_types import SCALES

TILE = 64
"""Positions of a tile, in all kernels."""

_BLOCK, _WARPGROUPS = "decode_quantized", "decode_quantized_hopper"


class QuantizedTiles(NamedTuple):
    """Shape of a block.

    slots: tiles of 64 keys or values in a ring.
    rings: with two, each of two warpgroups takes half of the positions; with one, one multiplies keys and one values.
    bits: bits of a key and of a value: 8 for q8_0, 4 for q4_0.
    """

    kernel: str
    queries: int
    slots: int
    rings: int = 0
    bits: tuple[int, int] = (8, 8)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 384 if self.kernel == _WARPGROUPS else 256

    def constants(self) -> dict[str, int]:
        """Return the macros of the kernel."""
        made = {"TILE_KV": TILE, "TILE_Q": self.queries, "STAGES": self.slots}
        made |= {"KEY_BITS": self.bits[0], "VALUE_BITS": self.bits[1]}
        return made | ({"RINGS": self.rings} if self.kernel == _WARPGROUPS else {})

    def shared(self, width: int) -> int:
        """Return the bytes of shared memory for heads of `width`."""
        head = width * max(self.bits) // 8 + SCALES
        if self.kernel == _WARPGROUPS:
            beside = self.queries * (-(-width // 64) * 128 + 256 + -(-width // 128) * 512)  # queries, weights, sums
            return self.rings * self.slots * TILE * head + beside + 1024
        spans = -(-width // 128)
        return self.slots * TILE * head + self.queries * (256 * spans + 272 * spans + 144 + 8)

    def argument(self, cache: Any) -> Any:
        """Return the kernel's argument for keys or values, an int8 or uint8 cache: the bytes or a tensor map."""
        if self.kernel == _BLOCK:
            return cache.view("uint8")
        words = cache.reshape(cache.shape[0] * cache.shape[1], -1).view("uint32")
        return tensor_map(words, (TILE, cache.shape[3] // 4))


_HOPPER = [
    QuantizedTiles(_WARPGROUPS, 16, 3, 2),
    QuantizedTiles(_WARPGROUPS, 32, 3, 2),
    QuantizedTiles(_WARPGROUPS, 48, 3, 2),
    QuantizedTiles(_WARPGROUPS, 64, 6, 1),
    QuantizedTiles(_WARPGROUPS, 96, 3, 1),
]
_BEFORE_HOPPER = [QuantizedTiles(_BLOCK, 8, 5), QuantizedTiles(_BLOCK, 32, 3)]
"""Shapes by their queries, chosen by the room in shared memory of heads of 256 values of q8_0."""

_SLOTS_4 = {(_BLOCK, 8): 8, (_WARPGROUPS, 96): 4}
"""Slots if keys and values have 4 bits, by kernel and queries; else twice as many as above, in about as much room."""


def quantized_tiles(queries: int, group: int, *, hopper: bool, bits: tuple[int, int] = (8, 8)) -> QuantizedTiles:
    """Return the shape for at least `queries` queries of a sequence; the bits of a row do not depend on that number.

    `bits` are those of a key and of a value, 8 or 4.
    """
    shapes = _HOPPER if hopper else _BEFORE_HOPPER
    if group > shapes[-1].queries:
        raise KernelError(
            f"attend: {group} query heads share a KV head, at most {shapes[-1].queries} may with a quantized cache"
        )
    found = next((shape for shape in shapes if shape.queries >= max(queries, group)), shapes[-1])
    slots = _SLOTS_4.get((found.kernel, found.queries), 2 * found.slots) if max(bits) == 4 else found.slots
    return found._replace(slots=slots, bits=bits)
