"""`python -m dflash`: run, chat, info, bench, serve."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from dflash.cli.terminal import say, wrapped
from dflash.distribution import mixture
from dflash.errors import DFlashError
from dflash.standard_streams import guarded

COMMANDS = ("run", "chat", "info", "bench")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command-line arguments without the program's name; those of this process if None.

    Returns
    -------
    int
        0; 1 after an error of dflash, which is one line on stderr; 2 after a usage error; 130 after Ctrl-C.
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
    return ["run", *words]


def _run(name: str, *words: str) -> int:
    """Run a command. Options may come before, between and after the model and the prompt."""
    module = import_module(f"dflash.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"python -m dflash {name}", description=module.HELP)
    module.add_arguments(parser)
    return module.main(parser.parse_intermixed_args(words))


def _parser() -> argparse.ArgumentParser:
    """Return the parser for calls without a known command: help, version, or a usage error."""
    parser = argparse.ArgumentParser(
        prog="python -m dflash",
        description="Run Qwen3.5-type GGUF models.",
        epilog='python -m dflash MODEL "prompt" is short for run; each command has its own --help',
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(metavar="{run,chat,info,bench,serve}", required=True)
    for name in COMMANDS:
        commands.add_parser(name, help=import_module(f"dflash.cli.{name}").HELP)
    commands.add_parser("serve", help="serve a model with OpenAI's and Anthropic's HTTP APIs")
    return parser


class _Version(argparse.Action):
    """Print the version. It is looked up only on demand, since that searches the installed packages."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import dflash

        print(dflash.__version__)
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
