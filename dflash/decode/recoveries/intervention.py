"""Record of a change that a recovery made."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intervention:
    """A change of the output. ``str()`` gives one sentence.

    Parameters
    ----------
    step : int
        Index of the session's step.
    recovery : str
        Name of the recovery, as ``"ToolStall"``.
    action : str
        ``"cut"``, ``"inject"``, ``"restart"``, ``"mask"``, or ``"skip"`` for an injection that the grammar refused.
    reason : str
        Cause and action.
    """

    step: int
    recovery: str
    action: str
    reason: str

    def __str__(self) -> str:
        return f"{self.recovery}: {self.reason}"
