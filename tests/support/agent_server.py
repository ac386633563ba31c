"""The server of ``python -m dflash.serve`` over an engine that writes what a test wants."""

import re
import threading
from contextlib import contextmanager

from hang_guard import GUARD
from serve_fakes import ScriptedEngine

from dflash.generation.engine_thread import EngineThread
from dflash.serve.access import local_hosts
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits
from dflash.serve.server import Server

CUT = "<cut>"
PIECE = re.compile(r"</?think>|</?tool_call>|.{1,7}?(?=<)|.{1,7}|<", re.S)


class Agent(ScriptedEngine):
    """Gives every request the text of ``reply(prompt)``, which is cut off if it ends with `CUT`.

    `prompts` and `outputs` hold the texts of all requests.
    """

    def __init__(self, tokenizer, reply):
        super().__init__(tokenizer, ())
        self.reply, self.prompts, self.outputs, self.scripts = reply, [], [], {}

    def add_all(self, sessions):
        for session in sessions:
            prompt = self.tokenizer.decode(session.token_ids)
            text = "Let me see.\n</think>\n\n" * prompt.endswith("<think>\n") + self.reply(prompt)
            self.prompts.append(prompt)
            self.outputs.append(text)
            self.scripts[session] = text
        super().add_all(sessions)

    def _advance(self, session):
        text = self.scripts[session]
        self.script, self.finish = PIECE.findall(text.removesuffix(CUT)), "length" if text.endswith(CUT) else "stop"
        return super()._advance(session)


@contextmanager
def serving(lm, engine, listener, limits=Limits()):  # noqa: B008 - immutable
    """The server of ``python -m dflash.serve`` over an engine; yields its address."""
    engine_thread, ready = EngineThread(engine), threading.Event()
    backend = Backend(engine_thread, lm.tokenizer, lm.template, ["local"], limits=limits)
    app = build_app(backend, hosts=local_hosts("127.0.0.1", None))
    server = Server(app, engine_thread, grace=0, ready=ready.set)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        assert ready.wait(GUARD)
        host, port = listener.getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join()
