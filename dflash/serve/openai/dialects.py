"""OpenAI's chat completions and completions as dialects of the server."""

from collections.abc import Mapping

from dflash.serve.dialect import AnswerHead
from dflash.serve.openai.chat_format import ChatFormat
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.openai.completion_format import CompletionFormat
from dflash.serve.openai.completion_request import parse_completion
from dflash.serve.openai.errors import OpenAIErrors
from dflash.serve.openai.step_records import ChatSteps, CompletionSteps
from dflash.serve.requests import ChatRequest, CompletionRequest


class ChatCompletions(OpenAIErrors):
    """``/v1/chat/completions``."""

    def parse(self, body: object, headers: Mapping[str, str]) -> ChatRequest:  # noqa: ARG002
        """Read the body of a request; see `parse_chat`."""
        return parse_chat(body)

    def format(self, request: ChatRequest, head: AnswerHead) -> ChatFormat:
        """Return the format of the response."""
        return (ChatSteps if request.options.steps else ChatFormat)(request, head)


class Completions(OpenAIErrors):
    """``/v1/completions``."""

    prompt_field = "prompt"

    def parse(self, body: object, headers: Mapping[str, str]) -> CompletionRequest:  # noqa: ARG002
        """Read the body of a request; see `parse_completion`."""
        return parse_completion(body)

    def format(self, request: CompletionRequest, head: AnswerHead) -> CompletionFormat:
        """Return the format of the response."""
        return (CompletionSteps if request.options.steps else CompletionFormat)(request, head)
