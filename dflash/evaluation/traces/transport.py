"""Ways to a model that answers: the same requests go to this process or to a server."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from dflash.json_types import JsonObject

OnTokens = Callable[[], None]
"""Called each time that output tokens come, one or several."""


class Answered(NamedTuple):
    """An answer.

    token_ids: output tokens; those of its text encoded anew if the server sends text alone.
    n_cached: prompt tokens from the prefix cache; None if the server does not say.
    """

    token_ids: list[int]
    n_cached: int | None
    is_exact: bool = True


class Transport(Protocol):
    """Sends requests; used by several threads at once.

    Attributes
    ----------
    name : str
        Name for reports.
    context : int or None
        Maximum tokens of prompt and output together, if known.
    """

    name: str
    context: int | None

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text as a part of a longer one."""

    def about(self) -> JsonObject:
        """Return what a record says of the model and this machine, as JSON values."""

    def start(self) -> None:
        """Forget what earlier runs have left, as far as this is possible. Called before each run."""

    def send(self, prompt_ids: Sequence[int], n_output: int, on_tokens: OnTokens, conversation: str) -> Answered:
        """Have a prompt continued by exactly `n_output` tokens, and return when the last one has come.

        conversation: name of the session, which the request carries as those of agents do.

        Raises DFlashError if the request was refused or ended early.
        """
