"""The command ``dflash``, or ``python -m dflash``."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from dflash.cli import serve_arguments
from dflash.cli.parsing.parser import Parser, program
from dflash.cli.terminal import say, wrapped
from dflash.distribution import mixture
from dflash.errors import DFlashError, did_you_mean
from dflash.standard_streams import guarded

COMMANDS = ("run", "chat", "info", "bench", "study", "capture", "export", "warmup", "serve", "completion")
"""Commands; each is a module of `dflash.cli`."""

MODELS = ("demo", "demo-draft")
"""Names of the models in the package, see `dflash.model.loading.hub.PACKAGED`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    arguments: command-line arguments without the program's name; those of this process if None.
    Returns: 0; 1 after an error of dflash, which is one line on stderr; 2 after a usage error; 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _main(words))


def _main(words: list[str]) -> int:
    """Run a command. An error of dflash is one line on stderr."""
    try:
        _check_installation()
        if words[:1] == ["serve"]:
            from dflash.cli.serve import main as serve

            return serve(words[1:])
        words = _with_command(words)
        if not words or words[0] not in COMMANDS:
            _parser().parse_args(words)
        return _run(*words)
    except DFlashError as error:
        say(wrapped(f"dflash: {error}"))
        return 1
    except KeyboardInterrupt:
        return 130


def _check_installation() -> None:
    """Warn if the files of another package lie among those of this one; raise an error if the other one's are imported."""
    import dflash

    mixed = mixture()
    if mixed and not hasattr(dflash, "load"):
        raise DFlashError(mixed)
    if mixed:
        say(wrapped(f"dflash: {mixed}"))


def _with_command(words: list[str]) -> list[str]:
    """Insert ``run`` if no command is given: `dflash MODEL "prompt"` is short for it."""
    if not words or words[0] in (*COMMANDS, "-h", "--help", "--version"):
        return words
    if words[0] == "help":
        return [*words[1:2], "--help"]
    if words[0].startswith("-") or words[0] in MODELS or _looks_like_a_file(words[0]):
        return ["run", *words]
    near = did_you_mean(words[0], (*COMMANDS, "help", *MODELS))
    if any(f" {command}?" in near for command in (*COMMANDS, "help")):
        _parser().error(f"{words[0]!r} is neither a command nor a file{near}")
    return ["run", *words]


def _looks_like_a_file(word: str) -> bool:
    return "/" in word or "\\" in word or ":" in word or word.endswith(".gguf") or os.path.lexists(word)


def _run(name: str, *words: str) -> int:
    """Run a command. Options may come before, between and after the model and the prompt."""
    module = import_module(f"dflash.cli.{name}")
    parser = parser_of(name)
    arguments = parser.parse_intermixed_args(words)
    try:
        return module.main(arguments)
    except DFlashError as error:
        raise DFlashError(parser.located(arguments, error)) from error


def parser_of(name: str) -> Parser:
    """Return the parser of a command. Its module holds a sentence, a usage line, examples and the arguments."""
    if name == "serve":
        return serve_arguments.parser()
    module = import_module(f"dflash.cli.{name}")
    parser = Parser(f"{program()} {name}", module.HELP, module.USAGE, module.EXAMPLES)
    module.add_arguments(parser)
    return parser


def _parser() -> Parser:
    """Return the parser for calls without a known command: help, version, or a usage error."""
    examples = (
        ('demo "Write a Python function that checks whether a number is prime."', "answer a prompt; short for run"),
        ("chat demo", "chat, and compare strategies with /compare"),
        ("help run", "the options of a command"),
    )
    parser = Parser(program(), "run GGUF models with interchangeable decoding strategies", "COMMAND ...", examples)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=argparse.ArgumentParser
    )
    for name in COMMANDS:
        module = serve_arguments if name == "serve" else import_module(f"dflash.cli.{name}")
        commands.add_parser(name, help=module.HELP)
    return parser


class _Version(argparse.Action):
    """Print the version. It is looked up only on demand, since that searches the installed packages."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import dflash

        print(dflash.__version__)
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
