"""Ways to run the requests of a study: in this process, or on a server."""

from dflash.evaluation.study.runners.base import Runner
from dflash.evaluation.study.runners.local import LocalRunner
from dflash.evaluation.study.runners.server import ServerRunner

__all__ = ["LocalRunner", "Runner", "ServerRunner"]
