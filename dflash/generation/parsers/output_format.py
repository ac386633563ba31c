"""Choice of the parsers of a request."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from secrets import token_hex

from dflash.decode.special_tokens import SpecialTokens
from dflash.generation.parsers.formats import ReasoningFormat, ToolFormat
from dflash.generation.parsers.offered import OfferedTools
from dflash.generation.parsers.output_parser import OutputParser
from dflash.generation.parsers.registry import find
from dflash.json_types import JsonMapping
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Formats of reasoning and tool calls in the completions of a request; None for text."""

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None

    @classmethod
    def of(
        cls,
        template: ChatTemplate | None,
        tools: Sequence[JsonMapping] | None = None,
        *,
        reasoning: str | None = None,
        tool: str | None = None,
        offered_only: bool = False,
        bound: bool = False,
    ) -> "OutputFormat | None":
        """Choose the formats.

        template: chat template of the model; chooses the formats that are not named.
        tools: functions offered to the model. Without any, no calls are parsed.
        reasoning, tool: names of registered formats, or ``"none"``.
        offered_only: calls of functions that were not offered are text.
        bound: a grammar binds the output to calls or JSON.
        Returns: None if there is nothing to parse.
        """
        source = "" if template is None else template.source
        thinks, calls = find("reasoning", reasoning, source), find("tool", tool, source)
        calls = calls if tools else None
        calls = calls and ((bound and calls.bound) or calls)
        return (
            cls(thinks and thinks(), calls and calls(OfferedTools(tools or (), only=offered_only)))
            if thinks or calls
            else None
        )

    def tokens(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return the tokens of the format of calls, which a parser must see."""
        found = map(tokenizer.id_of, () if self.tools is None else self.tools.tokens)
        return frozenset(token for token in found if token is not None)

    def with_calls(self, special_tokens: SpecialTokens, tokenizer: Tokenizer) -> SpecialTokens:
        """Return special tokens with the one that opens a call, where the format has others than ``<tool_call>``."""
        shown = self.tokens(tokenizer)
        silent, control = special_tokens.silent - shown, special_tokens.control - shown
        special_tokens = replace(special_tokens, silent=silent, control=control)
        opened = None if self.tools is None or not self.tools.tokens else tokenizer.id_of(self.tools.tokens[0])
        if special_tokens.call is not None or opened is None:
            return special_tokens
        return replace(special_tokens, call=(opened, opened))

    def parser(self, prompt_end: str, *, thinking: bool | None = None) -> OutputParser:
        """Return a parser for one completion of a prompt that ends in the given text.

        thinking: True if the prompt leaves reasoning open, False if not; None if only the given text tells.
        """
        prefix = f"call_{token_hex(8)}_"
        return OutputParser(self.reasoning, self.tools, prompt_end=prompt_end, thinking=thinking, id_prefix=prefix)
