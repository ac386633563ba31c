"""Requests to a model in this process."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.decode.drafters import Strategy
from dflash.decode.drafting.drafter import Drafter
from dflash.evaluation.environment import environment
from dflash.evaluation.traces.transport import Answered, OnTokens
from dflash.json_types import JsonObject

if TYPE_CHECKING:
    from dflash.lm import LM


class InProcess:
    """A loaded model as a `Transport`: its engine batches the requests of all clients.

    lm: loaded with ``prefix_cache=True`` and at least as many sequences as there are clients.
    """

    def __init__(self, lm: "LM", strategy: Strategy | Drafter | str | None = None, temperature: float = 0.0) -> None:
        self.name = repr(lm)
        self.context: int | None = lm.context
        self._lm, self._strategy, self._temperature = lm, Strategy.of(strategy), temperature
        lm.prepare(self._strategy)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text as a part of a longer one."""
        return self._lm.tokenizer.encode(text, special=False)

    def about(self) -> JsonObject:
        """Return strategy, temperature, and the environment with the model's files."""
        settings = {"strategy": repr(self._strategy), "temperature": self._temperature}
        return {**settings, "environment": dict(environment(self._lm))}

    def start(self) -> None:
        """Clear the prefix cache."""
        if self._lm.prefix_cache is not None:
            self._lm.call(self._lm.prefix_cache.clear)

    def send(self, prompt_ids: Sequence[int], n_output: int, on_tokens: OnTokens, conversation: str) -> Answered:  # noqa: ARG002
        """Have a prompt continued by exactly `n_output` tokens. Requests of the library have no name."""
        settings = {"strategy": self._strategy, "recover": (), "temperature": self._temperature, "ignore_eos": True}
        with self._lm.stream(list(prompt_ids), max_tokens=n_output, **settings) as stream:
            for delta in stream:
                if delta.step.tokens:
                    on_tokens()
            found = stream.generation
        return Answered(found.tokens, found.usage.cached_tokens)
