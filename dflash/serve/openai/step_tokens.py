"""Texts of the tokens of a step, with their origins, and of its draft."""

import codecs

from dflash.decode.metrics import accepted_nodes
from dflash.decode.step import Step
from dflash.generation.display.origins import kinds
from dflash.json_types import JsonObject
from dflash.model.text.tokenizer import Tokenizer


class StepTokens:
    """Writes the tokens of one choice's steps; called with every step, in order.

    A character belongs to the token that completes it, so the joined texts of all tokens but the control tokens are the text
    of the completion as the model wrote it, with the tags of reasoning and tool calls.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, step: Step) -> JsonObject:
        """Return the fields of a step's record.

        Returns: ``pieces``: for each token its origin (a key of `dflash.generation.display.palette.MEANING`), its text, and
            ``"control"`` for a control token or ``"added"`` for one such as ``<think>``. ``draft``: for each draft token its
            text and the index of its parent, -1 for the last token of the sequence. ``path``: indices of the accepted ones.
        """
        pieces = [
            [origin, *self._piece(token)] for token, origin in zip(step.tokens, kinds(step)[: len(step.tokens)], strict=True)
        ]
        draft = [
            [self._alone(token), parent]
            for token, parent in zip(step.draft.tokens.tolist(), step.draft.parents.tolist(), strict=True)
        ]
        return {"pieces": pieces, "draft": draft, "path": accepted_nodes(step)}

    def _piece(self, token: int) -> list[str]:
        if self._tokenizer.is_special(token):
            return [self._alone(token), "control"]
        text = self._decoder.decode(self._tokenizer.token_bytes(token))
        return [text, "added"] if self._tokenizer.is_added(token) else [text]

    def _alone(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")
