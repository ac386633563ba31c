"""The Messages API as the server runs it."""

from collections.abc import Mapping
from dataclasses import dataclass

from dflash.json_types import JsonMapping
from dflash.serve.anthropic.format import MessageFormat
from dflash.serve.anthropic.problems import refusal_of
from dflash.serve.anthropic.request import parse_messages
from dflash.serve.dialect import AnswerFormat, AnswerHead
from dflash.serve.http_errors import Problem
from dflash.serve.requests import ChatRequest


@dataclass(frozen=True, slots=True)
class MessagesDialect:
    """Anthropic's Messages API.

    keep_billing_header: keep the billing line in Claude Code's system prompt. It differs between sessions, so that they
        share no prefix.
    """

    keep_billing_header: bool = False
    counting: bool = False

    def parse(self, body: object, headers: Mapping[str, str]) -> ChatRequest:  # noqa: ARG002 - headers choose nothing here
        """Read a body; see `parse_messages`."""
        return parse_messages(body, keep_billing_header=self.keep_billing_header, counting=self.counting)

    def format(self, request: ChatRequest, head: AnswerHead) -> AnswerFormat:  # noqa: ARG002 - one format for all requests
        """Return the format of one message."""
        return MessageFormat(head)

    def problem(self, problem: Problem) -> tuple[int, JsonMapping, Mapping[str, str]]:
        """Return the status, body and headers of a refusal."""
        return refusal_of(problem)
