"""A request on its way to a replica, and what comes back."""

from dataclasses import dataclass, field
from hashlib import sha256

from starlette.types import Scope

from dflash.json_types import JsonMapping, JsonObject
from dflash.serve.routing.hints import RouteHints

_SCOPE = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers")
_ADDRESSES = ("client", "server")
_TAG = 8


class ReplicaLost(Exception):
    """The replica that had a request has ended. `Relay` answers with a `Problem`."""


@dataclass(frozen=True, slots=True)
class RoutedCall:
    """A request as a replica gets it.

    scope: the parts of the ASGI scope that an application may use, as plain values.
    owner: tag of the replica that holds a response which the request needs.
    excluded: replicas that have refused the request. They are chosen only if there is no other.
    """

    scope: JsonMapping
    body: bytes = b""
    hints: RouteHints = field(default_factory=RouteHints)
    owner: str | None = None
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a response. The first one comes when the replica has accepted the request; it has no messages.

    messages: ASGI messages in order, at least one, but in the first piece.
    refused: the response is a refusal that another replica may not share: too many requests wait, or the engine has ended.
    """

    replica: str
    messages: tuple[JsonMapping, ...] = ()
    refused: bool = False


def plain_scope(scope: Scope) -> JsonObject:
    """Return the parts of an ASGI scope that can be sent to another process."""
    parts = {name: scope[name] for name in _SCOPE if name in scope}
    parts["headers"] = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    return {**parts, **{name: tuple(scope[name]) for name in _ADDRESSES if scope.get(name)}}


def tag_of(replica: str) -> str:
    """Return the tag of a replica: hexadecimal digits with which the ids of its responses begin."""
    return sha256(replica.encode()).hexdigest()[:_TAG]


def owner_of(response_id: object) -> str | None:
    """Return the tag in the id of a response, as ``resp_`` and 32 hexadecimal digits; None if there is none."""
    if not isinstance(response_id, str) or not response_id.startswith("resp_"):
        return None
    return response_id.removeprefix("resp_")[:_TAG]
