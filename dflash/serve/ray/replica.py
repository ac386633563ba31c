"""A replica: the server's application around a model, without a socket."""

import sys
from collections.abc import AsyncIterator

from ray import serve

from dflash.cli.serve import app_of, defaults_of, load_backend
from dflash.errors import EngineFailed
from dflash.json_types import JsonMapping
from dflash.serve.access import read_key
from dflash.serve.health import health_of
from dflash.serve.ray.settings import RaySettings
from dflash.serve.routing.bridge import responses
from dflash.serve.routing.call import Piece, RoutedCall, tag_of
from dflash.serve.server import SWITCH_SECONDS

_OVERLOADED = (503, 529)
"""Statuses of a server that accepts no more requests now; 529 is Anthropic's."""


class ModelReplica:
    """Loads the model, and answers calls with the server's own application."""

    def __init__(self, settings: RaySettings) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        arguments = settings.server
        self._name = serve.get_replica_context().replica_id.unique_id
        key = read_key(arguments.api_key, arguments.api_key_file)
        self._backend = load_backend(arguments, defaults_of(arguments), id_prefix=tag_of(self._name))
        self._app = app_of(arguments, self._backend, key)

    async def __call__(self, call: RoutedCall) -> AsyncIterator[Piece]:
        """Yield the response to a call; cancelling it ends the request within a step."""
        yield Piece(self._name)
        async for messages in responses(self._app, call):
            yield Piece(self._name, messages, any(map(self._is_refusal, messages)))

    async def check_health(self) -> None:
        """Raise an error unless ``/health`` would answer 200. Ray calls it, and replaces the replica after three errors."""
        status, body = health_of(self._backend.engine_thread)
        if status != 200:
            raise EngineFailed(f"replica {self._name}: the engine is {body['status']}")

    async def __del__(self) -> None:
        """Close the application. Called by Ray when open requests have ended, or after `drain_seconds`."""
        async with self._app.router.lifespan_context(self._app):
            pass  # the end of the lifespan closes the engine thread

    def _is_refusal(self, message: JsonMapping) -> bool:
        status = message.get("status", 200)
        return status in _OVERLOADED or (status >= 500 and health_of(self._backend.engine_thread)[0] != 200)
