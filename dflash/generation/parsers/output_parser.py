"""Split of a completion into reasoning, content and tool calls, while it is written."""

import re
from collections.abc import Collection
from functools import lru_cache

from dflash.decode.output_part import OutputPart
from dflash.generation.parsers.call_search import CallSearch
from dflash.generation.parsers.events import Event, EventSink
from dflash.generation.parsers.formats import CallReader, ReasoningFormat, Stage, ToolFormat
from dflash.generation.parsers.tags import SPACE, beginnings, partial
from dflash.model.text.detokenizer import TextStream
from dflash.model.text.tokenizer import Tokenizer


class OutputParser:
    """Incremental parser of one completion.

    The events do not depend on how the text is split, if neighbouring deltas are joined. Text is held back only while it may
    become a tag. Nothing is closed or repaired. Tags are dropped, the line breaks that templates write around reasoning (one
    after the opening tag, one before the closing tag and two after it), and text in a call that is no argument.

    reasoning: tags around reasoning; None for completions without reasoning.
    tools: format of calls to the offered functions; None if there are no functions. Calls are text then.
    prompt_end: end of the prompt, which may have opened the reasoning.
    thinking: True if the prompt has opened reasoning; None if that is so where `prompt_end` is an opening tag.
    id_prefix: beginning of the identifiers of tool calls.

    Reasoning stands at the start of a completion. It ends at its closing tag, or where a call of an offered function begins.
    A ``<think>`` right after its end opens it again; any later one is content.
    Takes linear time and holds less than 800 characters back. A call whose name stands after its arguments is held whole.
    """

    def __init__(
        self,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
        *,
        prompt_end: str = "",
        thinking: bool | None = None,
        id_prefix: str = "call_",
    ) -> None:
        self._reasoning, self._tools = reasoning, tools
        self._sink = EventSink(id_prefix)
        self._text, self._at = "", 0
        self._in_block = False
        self._call: CallReader | None = None
        opened = reasoning is not None and prompt_end.rstrip().endswith(reasoning.opening)
        self._thinking = reasoning is not None and (opened if thinking is None else thinking)
        self._newlines = int(self._thinking and opened and not prompt_end.endswith("\n"))
        self._may_reopen = False
        self._line_start = self._is_first = True
        self._step = OutputParser._scan if reasoning is None else OutputParser._start

    @property
    def awaits_closing(self) -> bool:
        """True after a call whose closing tag may follow."""
        return self._step is OutputParser._after_call and self._tools is not None and self._tools.closing != ""

    @property
    def may_reason(self) -> bool:
        """True as long as more text may be reasoning."""
        return self._thinking or self._may_reopen or self._step is OutputParser._start

    @property
    def part(self) -> OutputPart:
        """Part of the completion that more text belongs to."""
        if self._call is not None and self._call.stage is Stage.HEAD:
            return OutputPart.OPENING
        if self._call is not None or self._step is OutputParser._after_call:
            return OutputPart.CALL
        return OutputPart.REASONING if self._thinking else OutputPart.CONTENT

    def push(self, text: str) -> list[Event]:
        """Return the events of more text that no later text can change."""
        self._text, self._at = self._text[self._at :] + text, 0
        while self._step(self):
            pass
        return self._sink.take()

    def finish(self, *, cut: bool = False) -> list[Event]:
        """Return the events of the text that was held back. Call it once, after the last text.

        cut: the model has not ended the completion itself. Then the head of a call is no text, since more would have made it
            one, nor is the beginning of what closes a call.
        """
        rest = self._text[self._at :]
        if self._call is None:
            self._write("" if cut and self._step is OutputParser._after_call else rest)
        elif self._call.stage is not Stage.HEAD:
            self._call.finish(rest, cut=cut)
        elif not self._call.settle(rest, cut=cut):
            self._write(self._call.written + rest)
        return self._sink.take()

    def _start(self) -> bool:
        """Consume an opening tag at the start of the text, even if the prompt has one already."""
        assert self._reasoning is not None, "the first step of a format with reasoning"
        whole, start = _opening(self._reasoning.opening)
        tag = whole.match(self._text, self._at)
        if tag is None and start.fullmatch(self._text, self._at):
            return False
        if tag is not None:
            self._thinking, self._newlines, self._at = True, 1, tag.end()
        self._step = OutputParser._skip_newlines
        return True

    def _skip_newlines(self) -> bool:
        while self._newlines and self._text.startswith("\n", self._at):
            self._newlines, self._at = self._newlines - 1, self._at + 1
        if self._newlines and self._at == len(self._text):
            return False
        self._newlines, self._step = 0, OutputParser._reopen if self._may_reopen else OutputParser._scan
        return True

    def _reopen(self) -> bool:
        """Consume an opening tag right after the end of reasoning."""
        assert self._reasoning is not None, "reasoning has ended"
        tag, rest = self._reasoning.opening, self._text[self._at : self._at + len(self._reasoning.opening)]
        if rest != tag and tag.startswith(rest):
            return False
        self._may_reopen, self._step = False, OutputParser._scan
        if rest == tag:
            self._at += len(tag)
            self._thinking, self._newlines, self._step = True, 1, OutputParser._skip_newlines
        return True

    def _scan(self) -> bool:
        """Pass on text up to the next tag."""
        text, start, search = self._text, self._at, self._search
        line_start, is_first = self._line_start and not self._thinking, self._is_first and not self._thinking
        tag = search.find(text, start, line_start=line_start, is_first=is_first)
        if tag is None:
            self._at = search.held(text, start, line_start=line_start)
            self._write(text[start : self._at])
            return False
        self._write(text[start : tag.start()])
        self._at = tag.end()
        if self._thinking and self._reasoning is not None and tag[0].endswith(self._reasoning.closing):
            self._thinking = self._in_block = False
            self._may_reopen = True
            self._newlines, self._step = 2, OutputParser._skip_newlines
        elif self._in_block:
            self._in_block = False
            self._write(tag[0])
        else:
            self._at = tag.start() + tag[0].startswith("\n")
            self._write(text[tag.start() : self._at])
            assert self._tools is not None, "the search finds no calls without tools"
            opened = tag[0].removeprefix("\n")
            self._call = self._tools.reader(self._sink, opened, in_reasoning=self._thinking)
            self._step = OutputParser._read_call
        return True

    def _read_call(self) -> bool:
        call = self._call
        assert call is not None, "`_scan` has opened it"
        self._at = call.read(self._text, self._at)
        if call.stage is Stage.HEAD:
            return False
        if call.stage is Stage.REJECTED:
            self._write(call.written)
            self._call, self._in_block, self._step = None, call.is_block, OutputParser._scan
            return True
        self._thinking = False
        if call.stage is Stage.BODY:
            return False
        self._call, self._step, self._line_start, self._is_first = None, OutputParser._after_call, True, False
        return True

    def _after_call(self) -> bool:
        """Consume the closing tag of a call, which may be missing, or begin the next call after a separator."""
        assert self._tools is not None, "it has read the call"
        closed, following, start = _after(self._tools.closing, self._tools.separator)
        tag = closed.match(self._text, self._at)
        if tag is None and following.match(self._text, self._at) is not None:
            self._call, self._step = self._tools.reader(self._sink, self._tools.separator), OutputParser._read_call
            return True
        if tag is None and start.fullmatch(self._text, self._at):
            return False
        self._at = self._at if tag is None else tag.end()
        self._step = OutputParser._scan
        return True

    @property
    def _search(self) -> CallSearch:
        """Search for the tags that mean something at this point."""
        tags: tuple[str, ...] = ()
        line_tags: tuple[str, ...] = ()
        first_tags: tuple[str, ...] = ()
        if self._tools is not None and self._in_block:
            tags = self._tools.closings
        elif self._tools is not None:
            tags = self._tools.reasoning_openings if self._thinking else self._tools.openings
            if not self._thinking:
                line_tags, first_tags = self._tools.line_openings, self._tools.first_openings
        if self._thinking and self._reasoning is not None:
            tags = (self._reasoning.closing, *tags)
        return _search_for(tags, line_tags, first_tags, self._thinking)

    def _write(self, text: str) -> None:
        if self._thinking:
            self._sink.reasoning(text)
        elif text:
            self._sink.content(text)
            self._line_start, self._is_first = text.endswith("\n"), self._is_first and text.isspace()


@lru_cache(maxsize=32)
def _search_for(tags: tuple[str, ...], line_tags: tuple[str, ...], first_tags: tuple[str, ...], newline: bool) -> CallSearch:
    return CallSearch(tags, line_tags, first_tags, newline=newline)


@lru_cache(maxsize=32)
def _after(closing: str, separator: str) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return expressions for a closing tag, for a separator and the call after it, and for the start of either."""
    closed = f"{SPACE}{re.escape(closing)}" if closing else "(?!)"
    following = rf"{SPACE}{re.escape(separator)}{SPACE}\{{" if separator else "(?!)"
    starts = [beginnings(SPACE, closing)] if closing else []
    starts += [beginnings(SPACE, separator, SPACE)] if separator else []
    return re.compile(closed), re.compile(following), re.compile("|".join(starts) or "(?!)")


@lru_cache(maxsize=8)
def _opening(tag: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return expressions for an opening tag after white space, and for its start."""
    return re.compile(SPACE + re.escape(tag)), re.compile(f"{SPACE}(?:{partial(tag)})?")


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
