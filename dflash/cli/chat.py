"""`chat`: a conversation of several turns."""

import argparse

from dflash.cli import arguments as common
from dflash.cli.model_arguments import add_context, add_model
from dflash.cli.terminal import say, wrapped
from dflash.errors import TemplateError

HELP = "chat with a model"
USAGE = "[options] [MODEL]"
EXAMPLES = (
    ("demo --strategy dflash --show-tokens", "the origin of every token, while it is written"),
    ('model.gguf --system "You are a helpful assistant." -c 8192', "/help lists the commands inside"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser, default="demo")
    add_context(parser)
    common.add_generation(parser)


def main(arguments: argparse.Namespace) -> int:
    """Read user messages and answer them until the end of the input."""
    from dflash.cli.conversation import Chat, complete, read, run_command

    strategy = common.strategy(arguments)
    # a second sequence has room for the saved states beside the one that is decoded
    with common.load(arguments, sequences=2, prefix_cache=True, prefix_cache_reread=True) as lm:
        if lm.template is None:
            raise TemplateError(f"{arguments.model} has no chat template: use run --raw")
        common.prepare(lm, strategy["strategy"])
        chat = Chat(lm, arguments, strategy)
        say(wrapped(f"{lm!r}; /help lists the commands"))
        complete()
        while True:
            calls = chat.open_calls
            line = read(f"result of {calls[0]['function']['name']}> " if calls else "> ")
            if line is None:
                return 0
            if line.startswith("/"):
                if not run_command(chat, line):
                    return 0
            elif line:
                chat.send(line)
