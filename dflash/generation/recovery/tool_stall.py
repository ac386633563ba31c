"""What a stalled agent's last words look like, in the ids of a tokenizer."""

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
    """Ask for a `ToolStall` in the ids of whatever model writes; in place of a name in ``recover=``.

    Parameters
    ----------
    tool : str
        Name of the tool that is called where nothing else says which; the model chooses if empty.
    phrases : Phrases
        What an announcement is made of.
    """

    tool: str = ""
    phrases: Phrases = PHRASES

    def made(self, tokenizer: Tokenizer, opening: Opening) -> ToolStall:
        """Watch for a stall, to answer it with an opening."""
        ends = _ends(ref(tokenizer), self.phrases.colons)
        says = Announcement(ref(tokenizer), self.phrases)
        return ToolStall(opening.call, ends.suffixes, says, opening.lead, ends.spaced)


@dataclass(frozen=True, slots=True)
class Announcement:
    """Whether ids announce an action."""

    tokenizer: "ref[Tokenizer]"
    phrases: Phrases

    def __call__(self, ids: Sequence[int]) -> bool:
        """Read them: what a language without spaces says has other ids in every sentence."""
        known = self.tokenizer()
        assert known is not None
        return self.phrases.announce(b"".join(map(known.token_bytes, ids)).decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Ends:
    """Ids that an announcement ends in, and which of them end in a line break."""

    suffixes: tuple[Ids, ...]
    spaced: frozenset[int]


@lru_cache(maxsize=8)
def _ends(tokenizer: "ref[Tokenizer]", colons: tuple[str, ...]) -> Ends:
    """Look through the vocabulary, once for each; a colon may have no token of its own."""
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
