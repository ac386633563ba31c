"""Find out whether the output begins with reasoning."""

from collections.abc import Sequence
from typing import NamedTuple

from dflash.decode.grammar.after import AfterToken
from dflash.decode.grammar.matcher import Grammar, Words
from dflash.decode.output_part import prompt_reasoning
from dflash.generation.recovery.special_tokens import THINK
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer


class Reasoning(NamedTuple):
    """Reasoning at the start of an output.

    opens: token by which the model may open reasoning; None if the prompt has opened it.
    """

    closes: int
    opens: int | None = None

    def before(self, grammar: Grammar, *, call: int | None = None, legal: Words | None = None) -> Grammar:
        """Return a grammar that begins after the reasoning.

        legal: uint32 (ceil(V / 32),), optional; tokens of reasoning; all if None.
        """
        return AfterToken(grammar, self.closes, opens=self.opens, enters=call, legal=legal)


def reasoning_after(prompt_ids: Sequence[int], tokenizer: Tokenizer, template: ChatTemplate | None) -> Reasoning | None:
    """Return the reasoning that an output may begin with; None if it has none.

    template: chat template that made the prompt; None for a plain text.

    If the prompt opens reasoning, a grammar begins after ``</think>``, as in vLLM, or with a tool call before it. If the
    prompt has closed reasoning, or the model has no tokens for it, the grammar begins at once. Where the model opens
    reasoning itself, the output is either ``<think>``, free text, ``</think>`` and the grammar, or the grammar alone.
    """
    opened, closed = map(tokenizer.id_of, THINK)
    if opened is None or closed is None:
        return None
    is_open = prompt_reasoning(prompt_ids, (opened, closed), tokenizer.eos_ids)
    if is_open is not None:
        return Reasoning(closed) if is_open else None
    thinks = template is not None and THINK[0] in template.source
    return Reasoning(closed, opened) if thinks else None
