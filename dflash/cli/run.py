"""`run`: stream one completion."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.cli import arguments as common
from dflash.cli.answer import show
from dflash.cli.model_arguments import add_context, add_model
from dflash.cli.terminal import put, say, wrapped
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.generation.prompts import Prompt
    from dflash.generation.result import Generation
    from dflash.generation.stream import Stream
    from dflash.lm import LM

HELP = "answer one prompt, or continue a text"
USAGE = "[options] MODEL [PROMPT]"
EXAMPLES = (
    ('demo "What is the capital of Japan?"', "the model in the package; options may stand anywhere"),
    (
        'demo "Write a function that returns the larger of a and b." --strategy dflash --show-tokens',
        "where tokens come from",
    ),
    ('model.gguf "Once upon a time" --raw -n 64', "continue a text without the chat template"),
    ("demo --no-think < question.txt", "read the prompt from a file"),
    ('unsloth/Qwen3.5-4B-GGUF "Hello" --strategy mtp:3', "a repository on the Hugging Face hub"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser)
    add_context(parser)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="prompt (default, or -: read from stdin)")
    parser.add_argument("--raw", action="store_true", help="continue the prompt without the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of streaming the text")
    parser.add_argument(
        "--dump", type=Path, metavar="FILE", help="write a trace: candidates, logits processors, draft tokens, samples"
    )
    common.add_generation(parser)


def main(arguments: argparse.Namespace) -> int:
    """Generate the completion. Ctrl-C stops it and keeps the text so far."""
    from dflash.generation.display import summary

    strategy = common.strategy(arguments)
    if arguments.prompt not in (None, "-"):
        _check(arguments.prompt, arguments)
    with common.load(arguments) as lm:
        # check the strategy before reading the prompt from a terminal
        common.prepare(lm, strategy["strategy"])
        text = _from_stdin() if arguments.prompt in (None, "-") else arguments.prompt
        _check(text, arguments)
        prompt, template = _prompt(arguments, lm, text)
        generation, interrupted = _write(
            arguments, lm, lm.stream(prompt, **template, **common.sampling(arguments), **strategy, dump=arguments.dump)
        )
    if arguments.json:
        put(json.dumps(generation.as_dict(), ensure_ascii=False))
    else:
        for line in summary(generation).splitlines():
            say(wrapped(line), style="2")
    return 130 if interrupted else 0


def _write(arguments: argparse.Namespace, lm: "LM", stream: "Stream") -> tuple["Generation", bool]:
    """Consume a stream, showing its text unless JSON is wanted. Return the result and True if Ctrl-C ended it."""
    interrupted = False
    with stream:
        try:
            if arguments.json:
                for _ in stream:
                    pass
            else:
                show(stream, **common.showing(arguments, lm))
        except KeyboardInterrupt:
            interrupted = True
            stream.close()
        return stream.generation, interrupted


def _check(text: str, arguments: argparse.Namespace) -> None:
    """Raise a RequestError for a prompt without text; a raw one may consist of spaces."""
    if not (text if arguments.raw else text.strip()):
        raise RequestError("prompt: is empty; write a text, or pipe one into dflash")


def _from_stdin() -> str:
    """Read the prompt from stdin; on a terminal, print a hint first."""
    if sys.stdin.isatty():
        say("reading the prompt from the terminal; Ctrl-D ends it")
    return sys.stdin.read()


def _prompt(arguments: argparse.Namespace, lm: "LM", text: str) -> tuple["Prompt", dict[str, object]]:
    """Convert the text to messages if the model has a chat template; return them with the template's arguments."""
    tools, settings = common.tools(arguments), common.template_settings(arguments)
    if lm.template is None or arguments.raw:
        if arguments.system or tools or settings:
            reason = "--raw turns it off" if lm.template is not None else "this model has none"
            raise RequestError(f"--system, --tools and --no-think need the chat template, and {reason}")
        return text, {}
    messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
    return [*messages, {"role": "user", "content": text}], {"tools": tools, "chat_template_kwargs": settings}
