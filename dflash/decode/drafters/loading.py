"""Base class of drafters that load a draft model, an MTP head or a small model for each target."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from dflash.decode.drafting.drafter import D, Drafter
from dflash.kernels.cpu.jit import runs_in_several_threads

if TYPE_CHECKING:
    from dflash.model.protocols.target import TargetModel


class LoadingDrafter(Drafter[D]):
    """A drafter with one loaded attachment for each target. The attachment is closed with the target.

    Subclasses define `load`, and `warm` if work on the device remains. An attachment is any object with
    ``close()``; by default it also has ``device``, and ``compile()`` on the CPU.
    """

    @property
    def source(self) -> str | None:
        """File or repository of the attachment: by default the field `file`. None if it is part of the target's own file."""
        return getattr(self, "file", None)

    def load(self, model: TargetModel) -> Any:
        """Load the attachment and check that it fits the target. Called from any thread.

        Another thread may run the target meanwhile: read only members that never change.
        """
        raise NotImplementedError

    def compile(self, attachment: Any) -> None:
        """Compile the attachment's CPU kernels by running it once. Called from any thread, before its first use.

        GPU kernels are compiled by `load`.
        """
        if attachment.device == "cpu":
            attachment.compile()

    def warm(self, attachment: Any) -> Iterable[None]:  # noqa: ARG002
        """Do the work that needs the thread that owns the model, in short pieces, before the first session."""
        return ()

    def is_prepared(self, model: TargetModel) -> bool:
        """Return True if the attachment is loaded."""
        return self in model.attachments

    def prepare(self, model: TargetModel) -> None:
        """Load the attachment unless it is loaded."""
        if not self.is_prepared(model):
            list(self.prepare_in_parts(model))

    def prepare_in_parts(self, model: TargetModel) -> Generator[None, None, None]:
        """Load the attachment in any thread, then warm it in the model's thread. Sessions see it once it is complete."""
        attachment = self.load(model)
        try:
            if runs_in_several_threads():
                self.compile(attachment)
            yield
            for _ in self.warm(attachment):
                yield
            if self.is_prepared(model):
                attachment.close()
            else:
                model.attachments[self] = attachment
        except BaseException:
            attachment.close()
            raise
