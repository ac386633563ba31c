"""Replicas of the server on Ray Serve: ``serve run dflash.serve.ray:app model=FILE``; see docs/ray.md."""

from typing import Any

from dflash.distribution import needed

with needed("dflash.serve.ray", "ray"):
    import ray.serve  # noqa: F401 - only checked here

from dflash.serve.ray.deployments import app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    """Return the application with the settings of the environment, for ``serve build dflash.serve.ray:built``."""
    if name == "built":
        return app({})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
