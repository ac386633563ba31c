"""Parser of the command line: help that begins with a sentence, and errors that say what was meant."""

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dflash.errors import DFlashError, did_you_mean

SETS = "SET,..."
FILES = ("FILE", "FOLDER", "SESSION", SETS)
"""Symbols of the options whose values are files or folders."""

_CHOICE = re.compile(r"invalid choice: '?([^' ]+)'? \(choose from (.+)\)")


class Parser(argparse.ArgumentParser):
    """A parser for one command.

    usage: arguments in the usage line, in place of the list of all options.
    allow_abbrev: whether the beginning of an option's name stands for it.
    """

    def __init__(
        self, prog: str, description: str, usage: str, examples: Sequence[tuple[str, str]] = (), *, allow_abbrev: bool = True
    ) -> None:
        sentence = f"{description[0].upper()}{description[1:].rstrip('.')}."
        super().__init__(
            prog=prog,
            usage=f"%(prog)s {usage}",
            description=sentence,
            allow_abbrev=allow_abbrev,
            formatter_class=_formatter,
        )
        self._examples = examples

    def format_help(self) -> str:
        """Return the sentence, the usage line, the examples, then all arguments."""
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        head, usage, rest = formatter.format_help().partition("usage: ")
        line, _, rest = rest.partition("\n\n")
        examples = "".join(f"  # {text}\n  {self.prog} {words}\n" for words, text in self._examples)
        return f"{head}{usage}{line}\n\n" + (f"examples:\n{examples}\n" if examples else "") + rest

    def error(self, message: str) -> NoReturn:
        """Print the usage line and the message with the nearest known words, and exit with 2."""
        kind, _, words = message.partition("unrecognized arguments: ")
        if not kind:
            options = [word.partition("=")[0] for word in words.split() if word.startswith("-")]
            message += "".join(did_you_mean(option, self._option_string_actions) for option in options)
        choice = _CHOICE.search(message)
        if choice:
            message += did_you_mean(choice[1], re.findall(r"[^\s',]+", choice[2]))
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}; {self.prog} --help lists all\n")

    def located(self, arguments: argparse.Namespace, error: DFlashError) -> str:
        """Return the message of an error; if it is about a file that an option names, it begins with option and file."""
        message = str(error)
        for action in self._actions:
            given = getattr(arguments, action.dest, None)
            if given is None or not action.option_strings or action.metavar not in FILES:
                continue
            option = next((each for each in action.option_strings if each.startswith("--")), action.option_strings[0])
            for name in str(given).split(",") if action.metavar == SETS else [str(given)]:
                found = re.match(rf"(?:[\w ]{{0,40}}:? )?['\"]?{re.escape(name)}['\"]?(?::|,| ) ?(?=.)", message)
                if found and not message.startswith(option):
                    return f"{option} {name}: {message[found.end() :]}"
        return message


def program() -> str:
    """Return the words that started this program: ``dflash``, or ``python -m`` with a module."""
    path = Path(sys.argv[0])
    modules = {"dflash": "python -m dflash", "serve": "python -m dflash.serve"}
    return modules.get(path.parent.name, "dflash") if path.name == "__main__.py" else "dflash"


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Return a formatter that indents the texts of arguments less in a narrow terminal, so that long words fit."""
    return argparse.HelpFormatter(prog, max_help_position=min(24, shutil.get_terminal_size().columns // 3))
