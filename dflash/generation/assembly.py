"""Completions of a request: one for each choice of each prompt, for library and server alike."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dflash.decode.grammar.matcher import Grammar
from dflash.decode.prompt_ids import PromptIds
from dflash.decode.sampling.params import Sampling
from dflash.generation.completion import Completion
from dflash.generation.grammar import build
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.grammar.schema.policy import Notes
from dflash.generation.parsers import OutputFormat
from dflash.generation.recovery.names import Language
from dflash.generation.recovery.special_tokens import opening_token
from dflash.json_types import JsonMapping

_NEVER = -100.0
"""Bias of a token that must not be sampled; the lowest that OpenAI's API allows."""


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """Prompts of a request as token ids, and what its completions have in common.

    prompts: token ids of each prompt, and True if the chat template made them.
    reasoning_parser, tool_parser: names of formats; None is that of the chat template for messages, none for other prompts.
    offered_tools_only: calls of functions that the request does not offer are text.
    """

    prompts: Sequence[tuple[Sequence[int], bool]]
    language: Language
    constraints: GrammarParams
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    offered_tools_only: bool = False

    def grammars(self) -> tuple[list[Grammar | None], list[str]]:
        """Compile the grammar of each prompt's outputs; return these, and notes on what they do not enforce."""
        notes, language = Notes(), self.language
        found = build.grammars(
            self.constraints, self.prompts, language.tokenizer, language.template, language.tools, notes=notes
        )
        return found, notes.texts

    def completions(
        self, grammars: Sequence[Grammar | None], sampling: Sequence[Sampling], **settings: Any
    ) -> list[Completion]:
        """Return a completion of each prompt for each of `sampling`; completions of a prompt share its ids.

        With ``tool_choice="none"`` the tools stand in a prompt of messages, but no call is sampled or parsed.
        """
        is_barred = self.constraints.tool_choice == "none"
        of_messages = self._format(() if is_barred else self.language.tools, of_template=True)
        of_text = self._format((), of_template=False)
        barred = [self._without_calls(each) for each in sampling] if is_barred else sampling
        return [
            Completion(
                self.language.tokenizer,
                prompt,
                sampling=each,
                output_format=of_messages if is_chat else of_text,
                grammar=grammar,
                **settings,
            )
            for (ids, is_chat), grammar in zip(self.prompts, grammars, strict=True)
            for prompt in (PromptIds.of(ids),)
            for each in (barred if is_chat else sampling)
        ]

    def _format(self, tools: Sequence[JsonMapping], *, of_template: bool) -> OutputFormat | None:
        return OutputFormat.of(
            self.language.template if of_template else None,
            tools,
            reasoning=self.reasoning_parser,
            tool=self.tool_parser,
            offered_only=self.offered_tools_only,
            bound=self.constraints.is_bound,
        )

    def _without_calls(self, sampling: Sampling) -> Sampling:
        call = opening_token(self.language.tokenizer, self.language.template)
        return sampling if call is None else replace(sampling, logit_bias={**dict(sampling.logit_bias), call: _NEVER})
