"""Messages of a conversation and the answers to them."""

import argparse
from typing import TYPE_CHECKING

from dflash.cli import arguments as common
from dflash.cli.answer import show
from dflash.cli.terminal import say, wrapped
from dflash.errors import DFlashError, EngineFailed
from dflash.generation.display import summary
from dflash.json_types import JsonObject

if TYPE_CHECKING:
    from dflash.generation.completion import Delta
    from dflash.generation.result import Generation
    from dflash.lm import LM

Message = JsonObject


class Chat:
    """A conversation with a model, and the settings of its next answer.

    settings: keyword arguments of `LM.generate`: strategy, recoveries and sampling.
    """

    def __init__(self, lm: "LM", arguments: argparse.Namespace, strategy: JsonObject) -> None:
        self.lm, self.arguments = lm, arguments
        self.template = {"tools": common.tools(arguments), "chat_template_kwargs": common.template_settings(arguments)}
        self._first = {**common.sampling(arguments), **strategy}
        self.answers: list[Generation] = []
        self.deltas: list[Delta] = []
        self.reset()

    def reset(self) -> None:
        """Return to the start: its system message, strategy and sampling, and no other message."""
        self.settings = dict(self._first)
        self.display = common.showing(self.arguments, self.lm)
        self.system: str | None = self.arguments.system
        self.clear()

    def clear(self) -> None:
        """Remove all messages except the system message."""
        self.messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []

    def undo(self) -> str | None:
        """Remove the last user message and all messages after it; return its text, None if there is none."""
        users = [index for index, message in enumerate(self.messages) if message["role"] == "user"]
        if not users:
            return None
        text: str = self.messages[users[-1]]["content"]
        del self.messages[users[-1] :]
        return text

    @property
    def open_calls(self) -> list[Message]:
        """Tool calls of the last answer that have no result yet."""
        last = next((message for message in reversed(self.messages) if message["role"] == "assistant"), {})
        results = {message.get("tool_call_id") for message in self.messages if message["role"] == "tool"}
        return [call for call in last.get("tool_calls", []) if call["id"] not in results]

    def send(self, text: str) -> None:
        """Add a line of the user, which is the result of a tool call if one is open, and answer when none is."""
        n, calls = len(self.messages), self.open_calls
        if calls:
            self.messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": text})
        else:
            self.messages.append({"role": "user", "content": text})
        if len(calls) < 2 and not self.answer():
            del self.messages[n:]

    def answer(self) -> bool:
        """Stream the answer to the last message. Ctrl-C stops it and keeps the text so far. Return False if it failed."""
        try:
            stream = self.lm.stream(self.messages, **self.template, **self.settings)
        except EngineFailed:
            raise
        except DFlashError as error:
            say(f"dflash: {error}")
            return False
        self.deltas = []
        with stream:
            try:
                show(stream, seen=self.deltas, **self.display)
            except KeyboardInterrupt:
                stream.close()
            generation = stream.generation
        self.answers.append(generation)
        self.messages.append(_message(generation))
        for line in summary(generation).splitlines():
            say(wrapped(line), style="2")
        return True


def _message(generation: "Generation") -> Message:
    """Return an answer as a message of the assistant."""
    message: Message = {"role": "assistant", "content": generation.content}
    if generation.reasoning:
        message["reasoning_content"] = generation.reasoning
    if any(call.complete for call in generation.tool_calls):
        message["tool_calls"] = [call.as_message() for call in generation.tool_calls if call.complete]
    return message
