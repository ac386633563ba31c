"""The Ray Serve application: an ingress, and replicas of the model."""

import os
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from dflash.json_types import JsonMapping
from dflash.serve.limits import MAX_CONNECTIONS, MAX_WAITING
from dflash.serve.ray.ingress import Ingress
from dflash.serve.ray.replica import ModelReplica
from dflash.serve.ray.router import AffinityRouter
from dflash.serve.ray.settings import RaySettings

HEALTH_SECONDS = 2.0
"""Seconds between health checks; Ray replaces a replica after three failed ones."""

MAX_BALANCE = 64
"""Largest default of `balance_absolute`."""


def app(arguments: dict[str, Any]) -> Application:
    """Build the application, for ``serve run``, ``serve build``, a configuration file, or `serve.run`."""
    settings = RaySettings.of(arguments, os.environ)
    sequences = settings.server.sequences
    model = serve.deployment(
        ModelReplica,
        name="Model",
        max_ongoing_requests=sequences + MAX_WAITING,
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus},
        request_router_config=RequestRouterConfig(
            request_router_class=AffinityRouter, request_router_kwargs=_routing(settings, sequences)
        ),
        **_size(settings, sequences),
    )
    ingress = serve.deployment(
        Ingress,
        name="Ingress",
        num_replicas=settings.ingress_replicas,
        max_ongoing_requests=MAX_CONNECTIONS,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        ray_actor_options={"num_cpus": 0},
    )
    return ingress.bind(model.bind(settings), settings.accept_seconds)


def _size(settings: RaySettings, sequences: int) -> JsonMapping:
    if settings.max_replicas <= settings.replicas:
        return {"num_replicas": settings.replicas}
    target = settings.target_requests or sequences
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=settings.replicas, max_replicas=settings.max_replicas, target_ongoing_requests=target
        )
    }


def _routing(settings: RaySettings, sequences: int) -> dict[str, float]:
    return {
        "min_share": settings.min_share,
        "balance_absolute": settings.balance_absolute or min(2 * sequences, MAX_BALANCE),
        "balance_ratio": settings.balance_ratio,
        "max_blocks": settings.max_blocks,
    }
