"""Studies: a grid of strategies and settings, measured into records that others can check."""

from dflash.evaluation.study.compare import compare_records
from dflash.evaluation.study.run import study
from dflash.evaluation.study.study import Study

__all__ = ["Study", "compare_records", "study"]
