"""Features of a target, the hidden states that drafts read: recording them, and finding those that harm a draft."""

from dflash.evaluation.features.capture import Captured, capture
from dflash.evaluation.features.diagnose import diagnose
from dflash.evaluation.features.diagnosis import Diagnosis
from dflash.evaluation.features.recorded import Recorded, recorded

__all__ = ["Captured", "Diagnosis", "Recorded", "capture", "diagnose", "recorded"]
