"""The grammar of one session: follows its history, masks its logits, trims its drafts."""

from collections.abc import Sequence
from time import thread_time

from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.grammar.drafts import MASKS_SECONDS, affordable, contains, legal_part, walk
from dflash.decode.grammar.matcher import Grammar, Words
from dflash.errors import DFlashError


class GrammarState:
    """Position of a session in its grammar.

    `History` passes every token that it appends or removes. So the position is that of the node which `verify` visits, and
    that of the sequence between steps, also after a restart.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._grammar, self._matcher = grammar, grammar.start()
        self._masks: dict[int, Words] = {}
        self._late: set[int] = set()
        self._seconds = 0.0

    @property
    def free(self) -> bool:
        """True if every token may follow."""
        return self._matcher.free

    @property
    def mask_load(self) -> float:
        """See `Grammar`."""
        return self._grammar.mask_load

    def push(self, token: int, position: int) -> None:
        """Move past a token of the sequence.

        Raises DFlashError if the token is not legal here. The position stays; the session must end.
        """
        if not self._matcher.advance(token):
            raise DFlashError(f"grammar: token {token} at position {position} is not legal after the output so far")

    def cut(self, n: int) -> None:
        """Undo the last `n` tokens."""
        if n:
            self._matcher.rollback(n)

    def check(self, token: int, position: int) -> None:
        """Raise the error of `push` if a token is not legal here, and stay."""
        self.push(token, position)
        self._matcher.rollback(1)

    def allows(self, tokens: Sequence[int]) -> bool:
        """Return True if these tokens may follow, one after the other."""
        n = 0
        while n < len(tokens) and self._matcher.advance(tokens[n]):
            n += 1
        self._matcher.rollback(n)
        return n == len(tokens)

    def restricts(self, tokens: Sequence[int]) -> list[bool]:
        """Return for each of these next tokens, which are legal, if a grammar binds the output there."""
        found: list[bool] = []
        for token in tokens:
            found.append(self._matcher.binds)
            if not self._matcher.advance(token):
                raise DFlashError(f"grammar: token {token} is not legal after {len(found) - 1} legal ones")
        self._matcher.rollback(len(found))
        return found

    def mask(self, row: int = 0) -> Words | None:
        """Return the tokens that may follow here, None for all."""
        known = self._masks.get(row)
        return known if known is not None else None if self._matcher.free else self._mask()

    def affords(self, row: int) -> bool:
        """Return False if the masks of a draft have taken too long: then it is to end above this row."""
        return row in self._masks or (row not in self._late and self._seconds <= MASKS_SECONDS)

    def constrains(self, draft: Draft) -> bool:
        """Return True if the root or any legal node of a draft needs a mask."""
        try:
            return False in [self._matcher.free for _ in walk(self._matcher, draft)]
        except DFlashError:
            return True  # `verify` raises it again, for this session alone

    def prepare(self, draft: Draft, n_vocab: int) -> dict[int, Words] | None:
        """Compute the masks of all nodes of a draft, while a device computes their logits.

        Returns: masks by row. Rows that need none are missing, and those that `affords` excludes. None if there is an error,
            which `verify` then raises for this session alone.
        """
        try:
            for node in walk(self._matcher, draft):
                if not self._matcher.free:
                    if self.affords(1 + node):
                        self._masks[1 + node] = self._mask()
                    else:
                        self._late.add(1 + node)
        except DFlashError:
            self.forget()
            return None
        n_words = -(-n_vocab // 32)
        return self._masks if all(len(words) == n_words for words in self._masks.values()) else None

    def forget(self) -> None:
        """Drop the masks of a draft, which was verified."""
        self._masks, self._late, self._seconds = {}, set(), 0.0

    def fit(self, draft: Draft, max_draft: int) -> Draft:
        """Return the legal part of a draft, or the tokens that the grammar forces, if the draft does not contain these."""
        try:
            draft = legal_part(self._matcher, draft)
            forced = list(self._matcher.forced()[: affordable(self._matcher, max(max_draft, 0))])
        except DFlashError:
            return EMPTY  # `verify` raises it again, for this session alone
        return draft if not forced or contains(draft, forced) else Draft(forced)

    def _mask(self) -> Words:
        began = thread_time()
        words = self._matcher.mask()
        self._seconds += thread_time() - began
        return words
