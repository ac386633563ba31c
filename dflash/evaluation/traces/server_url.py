"""Requests to a server with OpenAI's completions: this one, vLLM, SGLang or llama-server."""

import json
import os
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from dflash.errors import DFlashError, RequestError
from dflash.evaluation.environment import environment
from dflash.evaluation.traces.transport import Answered, OnTokens
from dflash.json_types import JsonObject

_SECONDS = 3600.0
"""Longest silence of a server, in seconds; a prompt of 150,000 tokens takes minutes on a CPU."""


class ServerURL:
    """A server as a `Transport`. Prompts are token ids, sent to ``/v1/completions``; the answer streams.

    A server that does not know ``return_token_ids``, such as llama-server, sends text alone, which is encoded anew for the
    next prompt. An ``OPENAI_API_KEY`` in the environment is sent.

    url: address, as ``http://127.0.0.1:8000``; a path ``/v1`` is allowed.
    strategy: field ``strategy`` of requests, for servers of dflash; if None, theirs applies.
    """

    def __init__(self, url: str, temperature: float = 0.0, strategy: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(f"url {url!r:.80}: must be an address as http://127.0.0.1:8000")
        self.name, self._parts, self._path = url, parts, parts.path.rstrip("/").removesuffix("/v1")
        self._settings: JsonObject = {"temperature": temperature}
        if strategy is not None:
            self._settings["strategy"] = strategy
        entry: JsonObject = next(iter(self._json("GET", "/v1/models").get("data") or []), {})
        self.model = str(entry.get("id", "default"))
        most = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
        self.context = most if isinstance(most, int) else None

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text as a part of a longer one, from ``/tokenize``."""
        try:  # llama.cpp's form, which vLLM refuses
            found = self._json("POST", "/tokenize", {"content": text, "add_special": False, "parse_special": False})
        except DFlashError:
            found = self._json("POST", "/tokenize", {"model": self.model, "prompt": text, "add_special_tokens": False})
        return list(found["tokens"])

    def about(self) -> JsonObject:
        """Return the server's model, the settings of requests, and the environment of the clients."""
        return {"model": self.model, **self._settings, "environment": dict(environment())}

    def start(self) -> None:
        """Do nothing: a server keeps its cache, and every run has other prompts."""

    def send(self, prompt_ids: Sequence[int], n_output: int, on_tokens: OnTokens) -> Answered:
        """Have a prompt continued by exactly `n_output` tokens."""
        body = {
            "model": self.model,
            "prompt": list(prompt_ids),
            "max_tokens": n_output,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **self._settings,
        }
        token_ids, texts, usage, n_cached = list[int](), list[str](), JsonObject(), None
        for event in self._events(body):
            if "error" in event:
                raise DFlashError(f"{self.name}: {_message(event)}")
            for choice in event.get("choices") or ():
                ids, text = choice.get("token_ids") or (), choice.get("text") or ""
                if ids or text:
                    on_tokens()
                token_ids += ids
                texts.append(text)
            usage = event.get("usage") or usage
            n_cached = (event.get("timings") or {}).get("cache_n", n_cached)  # llama-server
        details = usage.get("prompt_tokens_details") or {}
        n_cached = details.get("cached_tokens", n_cached)
        n_received = usage.get("completion_tokens", len(token_ids))
        if n_received != n_output:
            raise DFlashError(f"{self.name}: {n_received} output tokens came, {n_output} were asked for with ignore_eos")
        is_exact = bool(token_ids)
        return Answered(token_ids if is_exact else self.encode("".join(texts)), n_cached, is_exact)

    def _events(self, body: JsonObject) -> Iterator[JsonObject]:
        """Yield the objects of a stream."""
        connection, response = self._open("POST", "/v1/completions", body)
        try:
            while line := response.readline():
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])
        except (OSError, HTTPException, ValueError) as error:
            raise DFlashError(f"{self.name}: the stream broke off: {error!r:.100}") from error
        finally:
            connection.close()

    def _json(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        """Return the object that a route answers with."""
        connection, response = self._open(method, path, body)
        try:
            found = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            raise DFlashError(f"{self.name}{path}: answered with no JSON: {error!r:.100}") from error
        finally:
            connection.close()
        return found if isinstance(found, dict) else {}

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
            refused = DFlashError(f"{self.name}{path}: {response.status} {_refusal(response.read())}")
        except (OSError, HTTPException) as error:
            refused = DFlashError(f"{self.name}: {getattr(error, 'strerror', None) or repr(error)}")
        connection.close()
        raise refused


def _refusal(data: bytes) -> str:
    try:
        return _message(json.loads(data))
    except ValueError:
        return data[:200].decode("utf-8", "replace")


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
