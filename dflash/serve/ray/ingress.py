"""Entry of all requests: reads a body, and lets the router of the model's handle choose a replica."""

import logging
from collections.abc import AsyncGenerator

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response

from dflash.serve.http_errors import INTERNAL, Problem
from dflash.serve.routing.call import Piece, ReplicaLost, RoutedCall
from dflash.serve.routing.relay import relayed

log = logging.getLogger("dflash.serve")


class Ingress:
    """Passes requests on to replicas, and their responses back.

    accept_seconds: seconds for a replica to accept a request.
    """

    def __init__(self, model: DeploymentHandle, accept_seconds: float) -> None:
        self._model, self._accept_seconds = model.options(stream=True), accept_seconds

    async def __call__(self, request: Request) -> Response:
        """Answer a request. Called by Ray."""
        return await relayed(request, self._ask, self._accept_seconds)

    async def _ask(self, call: RoutedCall) -> AsyncGenerator[Piece]:
        answer = self._model.remote(call)
        try:
            async for piece in answer:
                yield piece
        except RayActorError as error:
            raise ReplicaLost from error
        except (BackPressureError, DeploymentUnavailableError) as error:
            raise Problem(503, "no replica accepts requests now; try again later", code="overloaded") from error
        except RayTaskError as error:
            log.exception("a replica failed on a request")
            raise Problem(500, INTERNAL) from error
        finally:
            answer.cancel()  # a client that has left, or a response that another replica gives; else it has ended
