"""Drafters that load something from files for each model: a draft, a head, a small model."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from dflash.decode.drafting.drafter import Drafter
from dflash.kernels.cpu.jit import runs_in_several_threads


class LoadingDrafter(Drafter):
    """A drafter with one companion for each model, which is closed with the model.

    Subclasses define `load`, and `warm` where something is left to be done on the device.
    """

    @property
    def source(self) -> str | None:
        """Name of what is loaded, a file or a repository; None if it is part of the model's own file."""
        raise NotImplementedError

    def load(self, model: Any) -> Any:
        """Open the companion and check that it goes with a model. Called from any thread.

        Only what never changes is read of the model: another thread runs it.
        """
        raise NotImplementedError

    def compile(self, companion: Any) -> None:
        """Run a companion on the CPU once, so that its kernels are compiled. Called from any thread, before anybody uses it.

        Kernels of a GPU are compiled as it is loaded.
        """
        if companion.device == "cpu":
            companion.compile()

    def warm(self, companion: Any) -> Iterable[None]:  # noqa: ARG002
        """Do what must be done in the thread that owns the model, before the first text; in short pieces."""
        return ()

    def is_prepared(self, model: Any) -> bool:
        """Return whether the companion is there."""
        return self in model.attachments

    def prepare(self, model: Any) -> None:
        """Load the companion, unless it is there."""
        if not self.is_prepared(model):
            for _ in self.prepare_in_parts(model):
                pass

    def prepare_in_parts(self, model: Any) -> Generator[None, None, None]:
        """Load the companion in any thread, then warm it in that of the model; others find it when it is complete."""
        companion = self.load(model)
        try:
            if runs_in_several_threads():
                self.compile(companion)
            yield
            for _ in self.warm(companion):
                yield
            if self.is_prepared(model):
                companion.close()
            else:
                model.attachments[self] = companion
        except BaseException:
            companion.close()
            raise
