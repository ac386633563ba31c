"""`chat`: a conversation of several turns."""

import argparse
from typing import TYPE_CHECKING, Any

from dflash.cli import arguments as common
from dflash.cli.model_arguments import add_context, add_model
from dflash.cli.terminal import say, show
from dflash.errors import RequestError, TemplateError

if TYPE_CHECKING:
    from dflash.lm import LM

HELP = "chat with a model"

COMMANDS = """\
/help          show this list
/clear         clear the conversation
/undo          remove the last question and its answer
/system TEXT   set the system message and clear the conversation
/exit          leave (also Ctrl-D); Ctrl-C stops an answer"""


class Chat:
    """A conversation with a model."""

    def __init__(self, lm: "LM", system: str | None, arguments: dict[str, Any]) -> None:
        self.lm, self.arguments = lm, arguments
        self.messages: list[dict[str, str]] = []
        self.system = system
        self.clear()

    def clear(self) -> None:
        """Remove all messages except the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def undo(self) -> None:
        """Remove the last user message and all messages after it."""
        users = [index for index, message in enumerate(self.messages) if message["role"] == "user"]
        if users:
            del self.messages[users[-1] :]

    def command(self, line: str) -> bool:
        """Run a line that starts with a slash. Return False to end the chat."""
        name, _, rest = line.partition(" ")
        match name:
            case "/exit" | "/quit":
                return False
            case "/clear":
                self.clear()
            case "/undo":
                self.undo()
            case "/system":
                self.system = rest.strip() or None
                self.clear()
            case "/help":
                say(COMMANDS)
            case _:
                say(f"{name}: unknown command\n{COMMANDS}")
        return True

    def answer(self, line: str) -> None:
        """Stream the answer to a line. Ctrl-C stops it and keeps the text so far."""
        self.messages.append({"role": "user", "content": line})
        try:
            stream = self.lm.stream(self.messages, **self.arguments)
        except RequestError as error:
            self.messages.pop()
            say(f"dflash: {error}")
            return
        with stream:
            try:
                show(stream)
            except KeyboardInterrupt:
                stream.close()
            text = stream.generation.text
        print(flush=True)
        self.messages.append({"role": "assistant", "content": text})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser, default="demo")
    add_context(parser)
    common.add_sampling(parser)
    common.add_strategy(parser)
    common.add_template(parser)


def main(arguments: argparse.Namespace) -> int:
    """Read user messages and answer them until the end of the input."""
    strategy = common.strategy(arguments)
    with common.load(arguments) as lm:
        if lm.template is None:
            raise TemplateError(f"{arguments.model} has no chat template: use run --raw")
        lm.prepare(strategy["strategy"])
        template = {"tools": common.tools(arguments), "chat_template_kwargs": common.template_settings(arguments)}
        chat = Chat(lm, arguments.system, {**template, **common.sampling(arguments), **strategy})
        say(f"{lm!r}; /help lists the commands")
        while True:
            line = _read()
            if line is None:
                return 0
            if line.startswith("/"):
                if not chat.command(line):
                    return 0
            elif line:
                chat.answer(line)


def _read() -> str | None:
    """Return the next line, None at the end of the input. Ctrl-C discards the line."""
    import sys

    prompt = "> " if sys.stdin.isatty() else ""
    if prompt:
        import readline  # noqa: F401 - gives input() history and editing
    try:
        return input(prompt).strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        print()
        return ""
