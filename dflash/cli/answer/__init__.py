"""Answers on a terminal: reasoning set apart, tool calls, and tokens coloured by their origin."""

import sys
from typing import TYPE_CHECKING

from dflash.cli.terminal import has_terminal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dflash.generation.completion import Delta
    from dflash.generation.stream import Stream
    from dflash.model.text.tokenizer import Tokenizer


def show(
    stream: "Stream",
    *,
    reasoning: str = "dim",
    tokenizer: "Tokenizer | None" = None,
    seen: "list[Delta] | None" = None,
) -> None:
    """Write the answer of a stream to stdout as it arrives, with a progress bar on stderr during prefill.

    With a tokenizer the text is coloured by the origin of its tokens, and a legend follows. Steps are added to `seen`.
    """
    from tqdm import tqdm

    from dflash.cli.answer.writer import AnswerWriter

    writer = AnswerWriter(sys.stdout, reasoning, tokenizer)
    bar = None
    try:
        for delta in stream:
            if seen is not None:
                seen.append(delta)
            if delta.step.prefilled and has_terminal():
                bar = bar or tqdm(total=stream.n_prompt - 1, desc="prompt", unit="tok", leave=False, file=sys.stderr)
                bar.update(delta.step.prefilled)
            elif bar is not None:
                bar.close()
            writer.write(delta)
    finally:
        if bar is not None:
            bar.close()
        writer.finish()


def show_tokens(deltas: "Iterable[Delta]", tokenizer: "Tokenizer") -> None:
    """Write an answer that has arrived, coloured by the origin of its tokens, and the legend."""
    from dflash.cli.answer.writer import AnswerWriter

    writer = AnswerWriter(sys.stdout, "dim", tokenizer)
    for delta in deltas:
        writer.write(delta)
    writer.finish()


__all__ = ["show", "show_tokens"]
