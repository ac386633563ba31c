"""Small copies by a launch: three by the copy engine between two decode steps delayed each step by 17 µs on an H200."""

from pathlib import Path

from dflash.errors import KernelError
from dflash.kernels.arrays import Stream
from dflash.kernels.gpu.jit import kernel

_THREADS, _VECTOR = 256, 4  # of transfer.cu


class Transfer:
    """Copies 4-byte words between device memory and pinned host memory, as a launch of the current device's streams."""

    def __init__(self) -> None:
        made = kernel(Path(__file__).with_name("transfer.cu"), "transfer", dependent=True)
        self._launch = made.bind(1, _THREADS, (0,) * 7)

    def __call__(
        self,
        to: int,
        source: int,
        n_words: int,
        stream: Stream = None,
        *,
        from_host: bool = False,
        taken: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Copy asynchronously.

        to, source: addresses, multiples of 16. The words must not overlap.
        stream: the current one if None.
        from_host: `source` is host memory, which is then read while launches before this one still run.
        taken: device address, first word and number of words that come from there in place of `source`.
        """
        if (to | source) % (4 * _VECTOR):
            raise KernelError(f"transfer: addresses {to:#x} and {source:#x} are not multiples of {4 * _VECTOR}")
        if n_words:
            blocks = -(-n_words // (_VECTOR * _THREADS))
            address, first, n_taken = taken
            where = {"to": to, "source": source, "n_words": n_words, "from_host": from_host}
            self._launch(stream, grid=blocks, **where, taken=address, first=first, n_taken=n_taken)
