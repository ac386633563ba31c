"""Requests over HTTP with the standard library."""

import json
import os
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from dflash.errors import DFlashError, RequestError
from dflash.json_types import JsonObject

_SECONDS = 3600.0
"""Longest silence of a server, in seconds; a prompt of 150,000 tokens takes minutes on a CPU."""


class ServerConnection:
    """Address of a server with OpenAI's completions. An ``OPENAI_API_KEY`` in the environment is sent.

    url: address, as ``http://127.0.0.1:8000``; a path ``/v1`` is allowed.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(f"url {url!r:.80}: must be an address as http://127.0.0.1:8000")
        self.url, self._parts, self._path = url, parts, parts.path.rstrip("/").removesuffix("/v1")

    def events(self, path: str, body: JsonObject) -> Iterator[JsonObject]:
        """Yield the objects of a stream."""
        connection, response = self._open("POST", path, body)
        try:
            while line := response.readline():
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise DFlashError(f"{self.url}: {_message(event)}")
                    yield event
        except (OSError, HTTPException, ValueError) as error:
            raise DFlashError(f"{self.url}: the stream broke off: {error!r:.100}") from error
        finally:
            connection.close()

    def json(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        """Return the object that a route answers with.

        Raises DFlashError if the server can't be reached, or answers with another status than 200.
        """
        connection, response = self._open(method, path, body)
        try:
            found = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            raise DFlashError(f"{self.url}{path}: answered with no JSON: {error!r:.100}") from error
        finally:
            connection.close()
        return found if isinstance(found, dict) else {}

    def tokenize(self, text: str, model: str) -> list[int]:
        """Return the token ids of a text as a part of a longer one, from ``/tokenize``."""
        try:  # llama.cpp's form, which vLLM refuses
            found = self.json("POST", "/tokenize", {"content": text, "add_special": False, "parse_special": False})
        except DFlashError:
            found = self.json("POST", "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
        return list(found["tokens"])

    def _open(self, method: str, path: str, body: JsonObject | None) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request and return its connection with a response whose status is 200."""
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=_SECONDS)
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        try:
            data = None if body is None else json.dumps(body, separators=(",", ":"))
            connection.request(method, self._path + path, data, headers)
            response = connection.getresponse()
            if response.status == 200:
                return connection, response
            refused = DFlashError(f"{self.url}{path}: {response.status} {_refusal(response.read())}")
        except (OSError, HTTPException) as error:
            refused = DFlashError(f"{self.url}: {getattr(error, 'strerror', None) or repr(error)}")
        connection.close()
        raise refused


def _refusal(data: bytes) -> str:
    try:
        return _message(json.loads(data))
    except ValueError:
        return data[:200].decode("utf-8", "replace")


def _message(body: object) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
