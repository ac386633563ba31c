"""Requests to a server with OpenAI's completions: this one, vLLM, SGLang or llama-server."""

from collections.abc import Sequence

from dflash.errors import DFlashError
from dflash.evaluation.environment import environment
from dflash.evaluation.server_connection import ServerConnection
from dflash.evaluation.traces.transport import Answered, OnTokens
from dflash.json_types import JsonObject


class ServerURL:
    """A server as a `Transport`. Prompts are token ids, sent to ``/v1/completions``; the answer streams.

    A server that does not know ``return_token_ids``, such as llama-server, sends text alone, which is encoded anew for the
    next prompt. An ``OPENAI_API_KEY`` in the environment is sent.

    url: address, as ``http://127.0.0.1:8000``; a path ``/v1`` is allowed.
    strategy: field ``strategy`` of requests, for servers of dflash; if None, theirs applies.
    """

    def __init__(self, url: str, temperature: float = 0.0, strategy: str | None = None) -> None:
        self.name, self._server = url, ServerConnection(url)
        self._settings: JsonObject = {"temperature": temperature}
        if strategy is not None:
            self._settings["strategy"] = strategy
        entry: JsonObject = next(iter(self._server.json("GET", "/v1/models").get("data") or []), {})
        self.model = str(entry.get("id", "default"))
        most = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
        self.context = most if isinstance(most, int) else None

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text as a part of a longer one."""
        return self._server.tokenize(text, self.model)

    def about(self) -> JsonObject:
        """Return the server's model, the settings of requests, and the environment of the clients."""
        return {"model": self.model, **self._settings, "environment": dict(environment())}

    def start(self) -> None:
        """Do nothing: a server keeps its cache, and every run has other prompts."""

    def send(self, prompt_ids: Sequence[int], n_output: int, on_tokens: OnTokens, conversation: str) -> Answered:
        """Have a prompt continued by exactly `n_output` tokens."""
        body = {
            "model": self.model,
            "prompt": list(prompt_ids),
            "max_tokens": n_output,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "user": conversation,
            **self._settings,
        }
        token_ids, texts, usage, n_cached = list[int](), list[str](), JsonObject(), None
        for event in self._server.events("/v1/completions", body):
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
