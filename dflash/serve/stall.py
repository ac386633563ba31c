"""What a stalled agent's last words look like, in the ids of a tokenizer."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from weakref import ref

from dflash.decode.recoveries.stall import Ids, ToolStall
from dflash.model.tokenizer import Tokenizer
from dflash.serve.opening import Opening

COLONS = ":", "\uff1a"
STARTS = ("I'll", "I\u2019ll", "I will", "I am going to", "I'm going to", "I need to", "Let me", "Let's", "Let us")
SKIP = ("done", "finished", "completed", "complete", "ready")


@dataclass(frozen=True, slots=True)
class Words:
    """Ids of the last words: ends of an announcement, its begins, and what says that all is done."""

    suffixes: tuple[Ids, ...]
    spaced: frozenset[int]
    starts: tuple[Ids, ...]
    skip: tuple[Ids, ...]


def tool_stall(tokenizer: Tokenizer, opening: Opening) -> ToolStall:
    """Watch for a stall, to answer it with an opening."""
    words = _words(ref(tokenizer))
    return ToolStall(opening.call, words.suffixes, words.skip, words.starts, opening.lead, words.spaced)


@lru_cache(maxsize=8)
def _words(tokenizer: "ref[Tokenizer]") -> Words:
    """Look through the vocabulary, once for each."""
    known = tokenizer()
    assert known is not None
    ends = {}
    for token in range(known.n_tokens):
        text = known.token_bytes(token).decode("utf-8", "replace")
        if text.rstrip(" \r\n*_").endswith(COLONS) and not known.is_special(token):
            ends[token] = text
    spaced = frozenset(token for token, text in ends.items() if text.endswith("\n"))
    return Words(tuple((token,) for token in ends), spaced, _spellings(known, STARTS), _spellings(known, SKIP))


def _spellings(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[Ids, ...]:
    """Ids of each, at the begin of a line and inside one."""
    forms = [letter + word[1:] for word in words for letter in (word[0].upper(), word[0].lower())]
    texts = [text for form in forms for text in (form, f" {form}")]
    return tuple(dict.fromkeys(map(tuple, tokenizer.encode_batch(texts, special=False))))
