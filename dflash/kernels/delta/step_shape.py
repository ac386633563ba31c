"""Blocks of step.cu for a GPU: parts of a head, place of the norm, and shared memory."""

from typing import NamedTuple

from dflash.kernels.ragged import PENDING

ACCEPTED_ROOM = 16
"""Accepted rows in shared memory, as in apply_accepted.cuh."""

_LEAST_ROWS = 16  # value rows of a block, at least; a multiple of them in all


class StepShape(NamedTuple):
    """A block of step.cu.

    width: k, elements of a key.
    """

    split: int
    own: int
    width: int
    taps: int
    fused: bool

    def shared_bytes(self, room: int, places: int, *, staged: bool) -> int:
        """Return the dynamic shared memory for `room` rows and `places` states; with `staged`, inputs are copied to it."""
        channels, kept = 2 * self.width + self.own, ACCEPTED_ROOM * (self.width + self.own + 1)
        of_row = (2 if staged else 1) * channels + (2 if self.fused else 1) * self.own + 4
        return 4 * (room * of_row + (2 * self.taps - 1) * channels + places * self.own * self.width + kept)

    def fits(self, room: int, most: int) -> bool:
        """Return whether `room` rows fit `most` bytes without staged inputs."""
        return self.shared_bytes(room, 0, staged=False) <= most


def split_of(n_values: int) -> int:
    """Return the blocks of a head, each with 16 to 64 value rows: few, as each block convolves the queries and keys."""
    return next(split for split in range(1, 9) if n_values % (16 * split) == 0 and n_values <= 64 * split)


def step_shapes(
    n_values: int, width: int, taps: int, most: int, *, clusters: bool, split: int | None = None, fused: bool | None = None
) -> list[StepShape]:
    """Return the blocks for a layer, the fastest first; a later one serves launches whose rows do not fit the one before.

    n_values, width, taps: v, K and the taps of the convolution.
    most: bytes of dynamic shared memory that a block may use.
    split: blocks of a head, in place of the fastest.
    fused: make the norm part of the launch; by default if blocks of a head can exchange its sums and any number of rows
        fits.

    All shapes of a layer give the same bits. With a fused norm there is one shape only, since the order of the norm's sums
    depends on the blocks of a head.
    """
    split = split or split_of(n_values)
    one = StepShape(split, n_values // split, width, taps, fused=True)
    if fused is None:
        fused = (clusters or split == 1) and one.fits(PENDING, most)
    if fused:
        return [one]
    splits = [n for n in range(split, n_values // _LEAST_ROWS + 1) if n % split == 0 and n_values % (_LEAST_ROWS * n) == 0]
    shapes = [StepShape(n, n_values // n, width, taps, fused=False) for n in splits or [split]]
    enough = next((i for i, shape in enumerate(shapes) if shape.fits(PENDING, most)), len(shapes) - 1)
    return shapes[: enough + 1]
