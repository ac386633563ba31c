"""Reader of an output's tokens that knows its parts from the parser of its text."""

from collections.abc import Collection

from dflash.decode.output_part import OutputPart
from dflash.generation.parsers.output_parser import OutputParser
from dflash.model.text.detokenizer import TextStream
from dflash.model.text.tokenizer import Tokenizer


class TextReader:
    """Follows an output for recoveries. Reasoning and calls end for them where they end for the client."""

    def __init__(self, tokenizer: Tokenizer, parser: OutputParser, shown: Collection[int] = ()) -> None:
        self._stream, self._parser = TextStream(tokenizer, skip_special=True, shown=shown), parser

    @property
    def part(self) -> OutputPart:
        """Part of the output that the next token belongs to."""
        return self._parser.part

    def feed(self, token: int) -> None:
        """Add the next token."""
        self._parser.push(self._stream.push((token,)))
