"""Positions in a chat prompt at which the prefix cache saves its state."""

import numpy as np

from dflash.decode.prompt_ids import PromptIds
from dflash.model.text.spelled_tokens import ROLE_STARTS
from dflash.model.text.tokenizer import Tokenizer


def role_boundaries(tokenizer: Tokenizer, prompt: PromptIds) -> tuple[int, ...]:
    """Return up to three numbers of tokens before a message of a chat prompt begins.

    They are the end of the first message, which other conversations share (system prompt and tools), the beginning of the
    last message before the answer, and that of the answer itself. Each snapshot copies the recurrent state, so few are
    worth more than one for each message. A text without messages has none.
    """
    start = next((token for token in map(tokenizer.id_of, ROLE_STARTS) if token is not None), None)
    if start is None:
        return ()
    starts = np.flatnonzero(prompt.array == start).tolist()
    return tuple(sorted({*starts[1:2], *starts[-2:]} - {0}))
