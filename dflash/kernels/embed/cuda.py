"""Token embeddings on a GPU."""

from pathlib import Path
from typing import Any

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch

_SOURCE = Path(__file__).with_name("embed.cu")
_MOST_THREADS = 320  # threads of a block


class Embed(RowLaunch):
    """An `embed` on fixed arrays, for any number of tokens.

    tokens: int32 (T,); token ids; ids outside 0 to V - 1 give zeros. All arrays are on the device.
    table: embedding table of any native type; the head's weight if the model ties them.
    scale: factor of every value.

    With a scale of 1 the values are exactly those of the table. Reads about twice their bytes, as a row spans many tiles.
    """

    def __init__(self, tokens: GpuArray, table: PackedWeight, out: GpuArray, *, scale: float = 1.0) -> None:
        n_known, width = table.shape
        if out.shape != (len(tokens), width):
            raise KernelError(f"{table.name}: out must be {(len(tokens), width)}, got {out.shape}")
        self.width = width
        self.macros: dict[str, Any] = {"QUANT": table.type, "MODEL_DIM": width}
        self.arguments = tokens, table.data, out, n_known, scale
        block = min(-(-width // 32) * 4, _MOST_THREADS)
        run = kernel(_SOURCE, "embed", dependent=True, **self.macros)
        super().__init__(run.bind(1, block, self.arguments), most=len(tokens))
