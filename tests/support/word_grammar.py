"""A grammar over the toy's few ids, written as a function of the path: which tokens may follow."""

from dataclasses import dataclass, field

import numpy as np

from dflash.errors import DFlashError

END = 0


def rule(path):
    """Runs of words: after token t come t + 1 or t + 2 or a break (12); a break forces 3, 4; END from the 26th place on."""
    last = path[-1] if path else 12
    if last == END:
        return set()
    if last == 12:
        return {3}
    if last == 3 and path[-2:-1] in ([], [12]):
        return {4}
    return {last % 11 + 1, (last + 1) % 11 + 1, 12} | ({END} if len(path) > 24 else set())


@dataclass(eq=False)
class WordGrammar:
    """`rule(path)` gives the legal tokens; `fails_at` makes it raise at paths of that length. Counts its masks."""

    rule: object = rule
    n_vocab: int = 14
    fails_at: int = -1
    made: list = field(default_factory=list)
    mask_load: float = 0.0

    def start(self):
        self.made.append(WordMatcher(self))
        return self.made[-1]


class WordMatcher:
    free, binds = False, True
    mask_seconds = 0.0

    def __init__(self, grammar):
        self.grammar, self.path, self.masked = grammar, [], []

    @property
    def legal(self):
        if len(self.path) == self.grammar.fails_at:
            raise DFlashError("grammar: can't be followed further: too complex")
        return self.grammar.rule(self.path)

    @property
    def is_accepting(self):
        return END in self.legal

    @property
    def is_complete(self):
        return self.legal == {END}

    def mask(self):
        self.masked.append(tuple(self.path))
        return words_of(self.legal, self.grammar.n_vocab)

    def advance(self, token):
        legal = token in self.legal
        if legal:
            self.path.append(token)
        return legal

    def rollback(self, n):
        assert 0 <= n <= len(self.path)
        del self.path[len(self.path) - n :]

    def forced(self):
        path, found = list(self.path), []
        while len(legal := self.grammar.rule(path)) == 1 and legal != {END} and len(found) < 8:
            found += legal
            path += legal
        return found


def words_of(tokens, n_vocab):
    bits = np.zeros(-(-n_vocab // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def tokens_of(words):
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def masked(grammar_rule):
    """For `oracles.naive`: the logits of illegal tokens are minus infinity."""

    def mask(logits, text, n_prompt):
        legal = list(grammar_rule(text[n_prompt:]))
        out = np.full_like(logits, -np.inf)
        out[legal] = logits[legal]
        return out

    return mask
