"""Protocols of the passes of a model on GPUs: on one GPU, or split over several."""

from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray

from dflash.kernels.arrays import GpuArray
from dflash.kernels.delta.state_copies import StateCopies
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.ragged import Ragged
from dflash.model.cuda.passes import Layers, PassGraphKey
from dflash.model.cuda.scratch_arena import ScratchArena


class StepPass(Protocol):
    """A decode pass, as `DecodePass`; its arrays are on the first GPU."""

    batch: DeviceBatch
    logits: GpuArray

    @property
    def layers(self) -> Layers:
        """Launches and arrays of the first GPU. Read after a pass, for its results."""

    def __call__(
        self,
        tokens: NDArray[Any] | GpuArray,
        rows: Ragged,
        capture: tuple[int, ...],
        *,
        logits: bool,
        amend: Callable[[], None] | None = None,
    ) -> None:
        """Run up to 64 pending rows. Called by the model, which reads the results from `logits` and `layers`."""

    def project(self, wanted: GpuArray, n: int) -> Any:
        """Return the logits of `n` rows of another pass. Called for prompts whose logits are wanted."""

    def prepare(self, shape: PassGraphKey) -> None:
        """Capture what a pass of this shape needs. Called before the first one, and by warm-up."""

    @property
    def launches(self) -> dict[int, int]:
        """Number of launches of a pass with logits, for each captured number of rows."""


class PromptPass(Protocol):
    """A prefill pass, as `PrefillPass`; its arrays are on the first GPU."""

    scratch: ScratchArena

    @property
    def copies(self) -> StateCopies | None:
        """Copies of recurrent states, set by the model before each pass; None if the pass can't make any."""

    @property
    def layers(self) -> Layers:
        """Launches and arrays of the first GPU. Read after a pass, for its results."""

    def __call__(self, tokens: NDArray[Any], rows: Ragged, capture: tuple[int, ...]) -> None:
        """Run prefill spans. Called by the model, which reads the results from `layers`."""
