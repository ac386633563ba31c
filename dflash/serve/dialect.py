"""Protocols of an HTTP API: what `endpoints` needs in order to run its requests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from dflash.generation.completion import Completion, Delta
from dflash.json_types import JsonMapping
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.http_errors import Problem
from dflash.serve.requests import ChatRequest, CompletionRequest


class ServerEvent(NamedTuple):
    """One server-sent event.

    data: JSON object, or a literal such as ``"[DONE]"``. None is an empty line, which readers of events skip.
    name: value of ``event:``, if the API has one.
    """

    data: JsonMapping | str | None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Facts about a response that are known before its first token.

    model: name of the model as the client wrote it, or the server's name.
    completions: completions of all choices, grouped by prompt; not started yet.
    fingerprint: name of all that determines the output, see `dflash.serve.admin.model_facts.fingerprint`.
    warm_up: no completion of this strategy has ended on this server: its time is not the strategy's speed.
    """

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    completions: Sequence[Completion]
    fingerprint: str | None = None
    warm_up: bool = False

    @property
    def fingerprint_field(self) -> dict[str, str]:
        """The fingerprint under OpenAI's name, for the response of any API; empty if there is none."""
        return {} if self.fingerprint is None else {"system_fingerprint": self.fingerprint}

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt of a chat request."""
        return self.completions[0].session.n_prompt


class AnswerFormat(Protocol):
    """Format of one response; a stream's state is here. Its methods are called one at a time, in any thread.

    `delta` of a step that is not the last runs in the event loop and must return quickly.

    A stream calls `opening`, then `delta` and `heartbeat` any number of times, then `closing` or `failure`.
    """

    def opening(self) -> Iterable[ServerEvent]:
        """Return the events that are sent at once, before the prompt is read."""

    def delta(self, index: int, delta: Delta) -> Iterable[ServerEvent]:
        """Return the events for what a step added to completion `index`; the last one has ``delta.step.finish``."""

    def closing(self, completions: Sequence[Completion]) -> Iterable[ServerEvent]:
        """Return the events after the last completion has ended, with the terminal event."""

    def heartbeat(self) -> ServerEvent:
        """Return an event that changes nothing. It is sent when the stream was silent for some seconds."""

    def failure(self, problem: Problem) -> Iterable[ServerEvent]:
        """Return the events that end a stream which has failed; called at most once, possibly after `closing` has failed."""

    def whole(self, completions: Sequence[Completion]) -> JsonMapping:
        """Return the body of a response that is not streamed."""


R = TypeVar("R", bound=ChatRequest | CompletionRequest)


class ErrorFormat(Protocol):
    """Format of refusals."""

    def problem(self, problem: Problem) -> tuple[int, JsonMapping, Mapping[str, str]]:
        """Return the status, body and headers of a refusal."""


class ServerDialect(ErrorFormat, Protocol[R]):
    """An HTTP API. One object serves all requests, several at a time."""

    def parse(self, body: object, headers: Mapping[str, str]) -> R:
        """Read the body of a request. Called in a worker thread.

        Raises FieldError if a field is missing, of the wrong kind or out of range. Unknown fields are ignored.
        Raises Problem: for other refusals.
        """

    def format(self, request: R, head: AnswerHead) -> AnswerFormat:
        """Return the format of the response. Called in a worker thread, before the completions start."""
