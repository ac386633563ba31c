"""Listening, and an end to it that tells everyone."""

import asyncio
import socket

import uvicorn
from starlette.applications import Starlette

from dflash.serve.worker import Worker

_UNWINDING = 30
"""Seconds after the grace that a forward may take to end."""


class Server(uvicorn.Server):
    """Uvicorn, which at its end lets open requests go on for a while and then ends their answers.

    Parameters
    ----------
    app : Starlette
        From `build_app`.
    worker : Worker
        The app's.
    host : str
        Address to listen on.
    port : int
        Port to listen on; 0 takes a free one.
    grace : float
        Seconds that open requests get at a shutdown.
    """

    def __init__(self, app: Starlette, worker: Worker, *, host: str, port: int, grace: float) -> None:
        super().__init__(uvicorn.Config(app, host=host, port=port, timeout_graceful_shutdown=int(grace) + _UNWINDING))
        self._worker, self._grace = worker, grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, wait, and end what is still open with an error that says why."""
        ending = asyncio.create_task(self._end_answers())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_answers(self) -> None:
        await asyncio.sleep(self._grace)
        await asyncio.to_thread(self._worker.close)
