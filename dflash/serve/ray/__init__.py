"""Replicas of the server on Ray Serve: ``serve run dflash.serve.ray:app model=FILE``; see docs/ray.md."""

from dflash.errors import DFlashError

try:
    import ray.serve  # noqa: F401 - only checked here
except ImportError as error:
    raise DFlashError("dflash.serve.ray needs Ray Serve: pip install 'dflash[ray]'") from error

from dflash.serve.ray.deployments import app

__all__ = ["app"]
