"""A conversation in the terminal: its messages, its commands, and the lines that the user types."""

from dflash.cli.conversation.chat import Chat
from dflash.cli.conversation.commands import COMMANDS, run_command
from dflash.cli.conversation.line_input import complete_words, read
from dflash.decode.registry import words


def complete() -> None:
    """Complete commands and strategies with the tab key."""
    complete_words([*COMMANDS, "/exit", *words()])


__all__ = ["Chat", "complete", "read", "run_command"]
