"""Recurrent state of sequences on the device."""

from typing import Any

from dflash.kernels.attention.cuda import compact
from dflash.kernels.conv import cuda as conv
from dflash.kernels.delta import cuda as delta
from dflash.kernels.gpu import device
from dflash.model.config import Config
from dflash.model.state.pools import Backend, Memories


def memories(config: Config, slots: int) -> Memories:
    """Allocate the recurrent memories of `slots` empty sequences.

    One array holds a memory of all layers, so that a snapshot takes two copies.
    """
    n, size = sum(config.recurrent), config.delta_size
    if n == 0:
        return Memories([], [], lambda _: [])
    heads = config.delta_key_heads, config.delta_value_heads
    channels = (2 * heads[0] + heads[1]) * size

    def of_all(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        return {name: device.zeros(n, *shape) for name, shape in shapes.items()}

    convs = of_all(conv.shapes(slots, config.conv_width, channels))
    deltas = of_all(delta.shapes(slots, *heads, size, size))

    def of_layer(i: int, arrays: dict[str, Any]) -> dict[str, Any]:
        return {name: array[i] for name, array in arrays.items()}

    def slot_views(slot: int) -> list[Any]:
        return [convs["tail"][:, slot], deltas["state"][:, slot]]

    return Memories(
        [conv.Memory(**of_layer(i, convs)) for i in range(n)],
        [delta.Memory(**of_layer(i, deltas)) for i in range(n)],
        slot_views,
    )


DEVICE = Backend(device.zeros, memories, compact, device.clone)
