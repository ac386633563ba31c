"""Record of a change that a recovery made."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intervention:
    """A recovery changed something; as a text it is one sentence.

    Parameters
    ----------
    step : int
        Which of the session's steps it was.
    recovery : str
        Who did it, as ``"ToolStall"``.
    action : str
        ``"cut"``, ``"inject"``, ``"restart"`` or ``"mask"``.
    reason : str
        What it saw, and what it did about it.
    """

    step: int
    recovery: str
    action: str
    reason: str

    def __str__(self) -> str:
        return f"{self.recovery}: {self.reason}"
