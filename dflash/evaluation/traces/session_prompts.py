"""Prompts of one session: blocks of equal ids are equal, and what follows a prompt begins with the model's own answer."""

from collections.abc import Sequence
from typing import NamedTuple

from dflash.evaluation.traces.filler import Filler
from dflash.evaluation.traces.trace_file import AgentTrace


class SessionPrompt(NamedTuple):
    """A prompt, and what a server may know of it.

    n_before: tokens of the earlier prompt that it continues; 0 if there is none.
    """

    token_ids: list[int]
    n_before: int
    n_own: int


class SessionPrompts:
    """Builds the prompts of a session one after the other, from the answers before.

    A block has the tokens with which its id was first seen. A prompt that continues an earlier one goes on with the tokens
    after its last whole block, then with the answer, as much of it as fits; the rest of a new block is filler.

    name: name of the session: sessions of different names share no text, unless the ids of the trace are shared.
    """

    def __init__(self, trace: AgentTrace, filler: Filler, name: str) -> None:
        self._trace, self._filler = trace, filler
        self._name, self._scope = name, "shared" if trace.is_shared else name
        self._blocks: dict[int, list[int]] = {}
        self._tails: dict[int, list[int]] = {}
        self._answers: dict[int, list[int]] = {}

    def prompt(self, index: int) -> SessionPrompt:
        """Return the prompt of a request. Called in the order of requests, each once."""
        request, size = self._trace.requests[index], self._trace.block_size
        known = next((i for i, block in enumerate(request.blocks) if block not in self._blocks), len(request.blocks))
        n_before, own, ahead = 0, list[int](), list[int]()
        if request.extends is not None:
            before = self._trace.requests[request.extends]
            n_before = before.n_prompt
            if known == len(before.blocks):
                own = self._answers.get(request.extends, [])
                ahead = [*self._tails[request.extends], *own]
        token_ids: list[int] = []
        for block in request.blocks:
            if block not in self._blocks:
                self._blocks[block] = self._filled(ahead[len(token_ids) - known * size :][:size], f"{block}", size)
            token_ids += self._blocks[block]
        n_tail = request.n_prompt - len(token_ids)
        tail = self._filled(ahead[len(token_ids) - known * size :][:n_tail], f"end {index}", n_tail)
        self._tails[index] = tail
        return SessionPrompt(token_ids + tail, n_before, min(len(own), request.n_prompt - n_before))

    def answered(self, index: int, token_ids: Sequence[int]) -> None:
        """Take the model's answer to a prompt."""
        self._answers[index] = list(token_ids)

    def _filled(self, tokens: list[int], name: str, n: int) -> list[int]:
        scope = self._name if name.startswith("end") else self._scope
        return tokens + self._filler.tokens(f"{scope} {name}", n)[len(tokens) :]
