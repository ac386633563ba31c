"""Detection of a stalled agent in token ids of a tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from weakref import ref

from dflash.decode.recoveries.tool_stall import Ids, ToolStall
from dflash.generation.recovery.announcements import PHRASES, Phrases
from dflash.generation.recovery.tool_call_prefix import Opening
from dflash.model.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Stall:
    """Request for a `ToolStall` that is built for the model in use; an object for ``recover=``.

    Parameters
    ----------
    tool : str
        Tool to call if the request does not determine one; if empty, the model chooses.
    phrases : Phrases
        Phrases that make an announcement.
    """

    tool: str = ""
    phrases: Phrases = PHRASES

    def made(self, tokenizer: Tokenizer, opening: Opening) -> ToolStall:
        """Return a recovery that answers a stall with the given opening."""
        ends = _ends(ref(tokenizer), self.phrases.colons)
        announces = Announcement(ref(tokenizer), self.phrases)
        return ToolStall(opening.call, ends.suffixes, announces, opening.lead, ends.spaced)


@dataclass(frozen=True, slots=True)
class Announcement:
    """Predicate: do token ids announce an action?"""

    tokenizer: "ref[Tokenizer]"
    phrases: Phrases

    def __call__(self, ids: Sequence[int]) -> bool:
        """Decode the ids and search the text: without spaces between words, ids of a phrase vary with its context."""
        known = self.tokenizer()
        assert known is not None
        return self.phrases.announce(b"".join(map(known.token_bytes, ids)).decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Ends:
    """Token ids that an announcement ends in, and those of them that end in a line break."""

    suffixes: tuple[Ids, ...]
    spaced: frozenset[int]


@lru_cache(maxsize=8)
def _ends(tokenizer: "ref[Tokenizer]", colons: tuple[str, ...]) -> Ends:
    """Search the vocabulary for tokens that end in a colon, cached per tokenizer. A colon may take several tokens."""
    known = tokenizer()
    assert known is not None
    ends = {}
    for token in range(known.n_tokens):
        text = known.token_bytes(token).decode("utf-8", "replace")
        if text.rstrip(" \r\n*_").endswith(colons) and not known.is_special(token):
            ends[token] = text
    pieces = (tuple(known.encode(colon, special=False)) for colon in colons)
    suffixes = ((token,) for token in ends), (ids for ids in pieces if len(ids) > 1)
    return Ends(tuple(chain(*suffixes)), frozenset(token for token, text in ends.items() if text.endswith("\n")))
