"""Find out whether the output begins with reasoning."""

from collections.abc import Sequence
from typing import NamedTuple

from dflash.decode.grammar.after import AfterToken
from dflash.decode.grammar.matcher import Grammar
from dflash.generation.recovery.special_tokens import THINK
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer


class Reasoning(NamedTuple):
    """Reasoning at the start of an output.

    Parameters
    ----------
    closes : int
        Token that ends reasoning.
    opens : int or None
        Token by which the model may open reasoning; None if the prompt has opened it.
    """

    closes: int
    opens: int | None = None

    def before(self, grammar: Grammar) -> Grammar:
        """Return a grammar that begins after the reasoning."""
        return AfterToken(grammar, self.closes, opens=self.opens)


def reasoning_after(prompt_ids: Sequence[int], tokenizer: Tokenizer, template: ChatTemplate | None) -> Reasoning | None:
    """Return the reasoning that an output may begin with; None if it has none.

    Parameters
    ----------
    prompt_ids : sequence of int
        The prompt. Only its last turn counts, which begins after the last end token.
    template : ChatTemplate or None
        Chat template that made the prompt; None for a plain text.

    Notes
    -----
    If the prompt opens reasoning, a grammar begins after ``</think>``, as in vLLM. If the prompt has closed it, or the
    model has no reasoning tokens, the grammar begins at once. Where the model opens reasoning itself, the output is
    either ``<think>``, free text, ``</think>`` and the grammar, or the grammar alone.
    """
    opened, closed = map(tokenizer.id_of, THINK)
    if opened is None or closed is None:
        return None
    for token in reversed(prompt_ids):
        if token == closed:
            return None
        if token == opened:
            return Reasoning(closed)
        if token in tokenizer.eos_ids:
            break
    thinks = template is not None and THINK[0] in template.source
    return Reasoning(closed, opened) if thinks else None
