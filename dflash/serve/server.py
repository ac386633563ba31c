"""Listening, and an end to it that tells everyone."""

import asyncio
import os
import signal
import socket
import threading
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from dflash.generation.engine_thread import Worker
from dflash.serve.health import MAX_CLOSING
from dflash.serve.limits import KEEP_ALIVE_SECONDS, MAX_CONNECTIONS


class Server(uvicorn.Server):
    """Uvicorn, which at its end lets open requests go on for a while and then ends their answers.

    A signal (SIGINT, SIGTERM) begins the shutdown, and so does the failure of the engine; a second signal ends the process
    at once.

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
        timeout = int(grace + MAX_CLOSING)
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=timeout,
        )
        super().__init__(config)
        self._worker, self._grace = worker, grace
        self._signalled = False

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal or a failure of the engine, and return when everyone has an answer."""
        if threading.current_thread() is not threading.main_thread():
            return super().run(sockets)
        # uvicorn raises the signals that it has handled once more when it is done: SIGTERM would end the process with -15
        before = signal.signal(signal.SIGTERM, _ignore)
        try:
            return super().run(sockets)
        finally:
            signal.signal(signal.SIGTERM, before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown; at the second signal, end at once."""
        if self._signalled:
            signal.signal(sig, signal.SIG_DFL)
            os.kill(os.getpid(), sig)
        self._signalled = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Tell uvicorn, which asks ten times a second, whether to shut down."""
        return await super().on_tick(counter) or self._worker.error is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, wait, and end what is still open with an error that says why."""
        ending = asyncio.create_task(self._end_answers())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_answers(self) -> None:
        await asyncio.sleep(self._grace)
        await asyncio.to_thread(self._worker.close, MAX_CLOSING)


def _ignore(sig: int, frame: FrameType | None) -> None:
    """Do nothing: uvicorn's own handler has begun the shutdown, or the process is ending anyway."""
