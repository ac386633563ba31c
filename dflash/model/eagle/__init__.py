"""EAGLE-3 heads: one decoder layer that drafts from hidden states of three layers of its target."""

from dflash.model.eagle.config import EagleConfig
from dflash.model.eagle.head import EagleHead

__all__ = ["EagleConfig", "EagleHead"]
