"""Plan of a model on several devices: layers, weights and memory of each, computed before anything is loaded."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dflash.errors import OutOfMemory, RequestError, Unsupported
from dflash.kernels.ragged import PAGE
from dflash.model.config import Config
from dflash.model.gguf.part import TensorInfo
from dflash.model.loading.settings import LoadSettings
from dflash.model.split.shards import Shard, own_rows, shard_config
from dflash.model.state.budget import Need, block_of, kept_unpacked, n_pages, unpacked_size

_STEPS = 40  # of the bisection that balances the devices; the last one changes 1e-12 of the memory


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Part of a model on one device, in bytes.

    layers: layers whose weights it has; in a tensor split it has a part of each.
    config: sizes of its part, from which its KV pages and recurrent slots are allocated.
    weights, unpacked: weights, and those that stay unpacked for prompts.
    states, pages, work: recurrent states of all sequences; KV pages, with those that prompts unpack; scratch memory and
        reserve.
    free: free memory before loading.
    """

    name: str
    layers: range
    config: Config
    weights: int
    unpacked: int
    states: int
    pages: int
    work: int
    free: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.weights + self.unpacked + self.states + self.pages + self.work

    def as_dict(self) -> dict[str, Any]:
        """Return the plan of the device as JSON values, sizes in bytes."""
        sizes = {name: getattr(self, name) for name in ("weights", "unpacked", "states", "pages", "work", "total", "free")}
        return {"device": self.name, "layers": [self.layers.start, self.layers.stop], **sizes}


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """A model on several devices. devices: the first one also has the embedding, the LM head and the drafts."""

    kind: str
    devices: tuple[DevicePlan, ...]
    n_pages: int
    context: int

    @property
    def layout(self) -> str:
        """Text that differs between plans whose saved states differ in shape."""
        parts = "+".join(str(len(device.layers)) for device in self.devices)
        return f"layers {parts}" if self.kind == "layer" else f"tensor {len(self.devices)}"


def plan_split(
    config: Config,
    tensors: Collection[TensorInfo],
    settings: LoadSettings,
    *,
    names: Sequence[str],
    free: Sequence[int],
    work: Callable[[Config], int],
) -> SplitPlan:
    """Divide a model among devices; recurrent states are allocated for one more sequence than `settings` say.

    free: free bytes of each device.
    work: returns the bytes of scratch memory and reserve of a device that runs layers of these sizes.
    """
    if config.layers:
        raise Unsupported(
            f"architecture {config.architecture!r} runs on one GPU: load it with device='cuda', without devices"
        )
    kind, kv, texts = settings.split_kind, settings.kv, settings.sequences + 1
    if kind == "tensor":
        part, wholes = shard_config(config, len(names)), [range(config.n_layers)] * len(names)
        configs, used = [part] * len(names), work(config)
        weights = [_shard_bytes(config, tensors, Shard(rank, len(names))) for rank in range(len(names))]
        sizes = [-(-unpacked_size(config, tensors) // len(names))] * len(names)
    else:
        used = work(config)
        wholes = _assign(config, tensors, [n - used for n in free], names, texts=texts, kv=kv, context=settings.context)
        configs = [layers_config(config, layers) for layers in wholes]
        weights = [_layer_bytes(config, tensors, layers, home=layers.start == 0) for layers in wholes]
        sizes = [unpacked_size(config, [each for each in tensors if block_of(each.name) in layers]) for layers in wholes]
    needs = [Need.of(each, kv) for each in configs]
    states = [texts * (need.state + need.pending) for need in needs]
    rooms = [n - used - w - s for n, w, s in zip(free, weights, states, strict=True)]
    for name, room, need, n, w, s in zip(names, rooms, needs, free, weights, states, strict=True):
        if room < need.page:
            raise OutOfMemory(
                f"{name}: its weights take {w >> 20} MiB, {settings.sequences} sequences {s >> 20} MiB, the work on them "
                f"{used >> 20} MiB; it has {n >> 20} MiB free; set fewer sequences or a smaller pending"
            )
    whole = Need.of(config, kv)
    pages_of = [need.page and need.page + need.unpacked for need in needs]
    of_each = zip(sizes, rooms, pages_of, strict=True)
    unpacked = [kept_unpacked(config, settings, size, room, page) for size, room, page in of_each]
    left = (room - each for room, each in zip(rooms, unpacked, strict=True))
    fit = min((room // page for room, page in zip(left, pages_of, strict=True) if page), default=0)
    pages, most = n_pages(config, settings, room=fit * (whole.page + whole.unpacked))
    cached = [pages * page for page in pages_of]
    devices = tuple(
        DevicePlan(name, layers, part, w, u, s, p, used, n)
        for name, layers, part, w, u, s, p, n in zip(
            names, wholes, configs, weights, unpacked, states, cached, free, strict=True
        )
    )
    return SplitPlan(kind, devices, pages, most)


def layers_config(config: Config, layers: range) -> Config:
    """Return the sizes of a block of consecutive layers."""
    return replace(config, n_layers=len(layers), recurrent=config.recurrent[layers.start : layers.stop])


def _assign(
    config: Config,
    tensors: Collection[TensorInfo],
    room: Sequence[int],
    names: Sequence[str],
    *,
    texts: int,
    kv: str,
    context: int | None,
) -> list[range]:
    """Return the layers of each device: consecutive, and such that the fullest device is as empty as possible."""
    n, wanted = config.n_layers, -(-(context or config.context) // PAGE)
    if n < len(names):
        raise RequestError(f"devices: {len(names)} devices for {n} layers, must be at most one for each layer")
    one = [Need.of(layers_config(config, range(i, i + 1)), kv) for i in range(n)]
    weights = [_layer_bytes(config, tensors, range(i, i + 1), home=False) for i in range(n)]
    beside = _layer_bytes(config, tensors, range(0), home=True)
    while True:
        costs = [w + texts * (need.state + need.pending) + wanted * need.page for w, need in zip(weights, one, strict=True)]
        found, low, high = _filled(costs, room, beside, 1.0), 0.0, 1.0
        if found is not None:
            break
        if wanted == 1:
            need = sum(costs) + beside
            raise OutOfMemory(
                f"the weights and {texts - 1} sequences take {need >> 20} MiB; {', '.join(names)} have "
                f"{', '.join(str(max(0, each) >> 20) for each in room)} MiB beside their scratch memory; set fewer "
                "sequences or a smaller pending"
            )
        wanted = -(-wanted // 2)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        fits = _filled(costs, room, beside, middle)
        found, low, high = (found, middle, high) if fits is None else (fits, low, middle)
    return found


def _filled(costs: Sequence[int], room: Sequence[int], beside: int, share: float) -> list[range] | None:
    """Fill the devices one after another up to a share of their room; None if the layers do not fit."""
    found, first = list[range](), 0
    for number, size in enumerate(room):
        left, end = share * size - (0 if number else beside), first
        last = len(costs) - (len(room) - 1 - number)  # leave a layer for each later device
        while end < last and costs[end] <= left:
            left -= costs[end]
            end += 1
        if end == first:
            return None
        found.append(range(first, end))
        first = end
    return found if first == len(costs) else None


def _layer_bytes(config: Config, tensors: Collection[TensorInfo], layers: range, *, home: bool) -> int:
    """Return the bytes of some layers; with `home` also of all that belongs to no layer, and of MTP blocks."""
    total = 0
    for tensor in tensors:
        number = block_of(tensor.name)
        if number is None or number >= config.n_layers:
            total += tensor.device_bytes if home else 0
        elif number in layers:
            total += tensor.device_bytes
    return total


def _shard_bytes(config: Config, tensors: Collection[TensorInfo], shard: Shard) -> int:
    """Return the bytes of one device of a tensor split."""
    total = 0
    for tensor in tensors:
        number, n = block_of(tensor.name), tensor.device_bytes
        if number is None:
            part = shard.rows(tensor.shape[0])
            head = tensor.name == "output.weight" and shard.rank > 0
            total += n * (part.stop - part.start) // tensor.shape[0] if head else n
        elif number >= config.n_layers:
            total += 0 if shard.rank else n
        else:
            name = tensor.name.split(".", 2)[2]
            split = own_rows(config, shard, name, recurrent=config.recurrent[number])
            total += n // shard.of if split else n
    return total
