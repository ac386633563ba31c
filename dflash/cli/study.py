"""`study`: a grid of strategies and settings, measured into records; or the differences of two."""

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.cli.model_arguments import add_plugins
from dflash.cli.terminal import has_terminal, put, say
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.lm import LM

HELP = "measure a grid of strategies and settings, or compare two such measurements"
USAGE = "[options] FILE.toml | compare A B"
EXAMPLES = (
    ("study.toml", "run the study of a file; an interrupted one continues"),
    ("study.toml --table latex --plot study.svg", "its table for a paper, and a plot"),
    ("study.toml --url http://127.0.0.1:8000", "the same against a server"),
    ("compare before after", "differences of two folders of records, or of two records"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("words", nargs="+", metavar="FILE.toml | compare A B", help="the study, or two folders or records")
    parser.add_argument("--table", choices=("markdown", "latex", "csv"), default="markdown", help="kind of table (markdown)")
    text = "run on a server of dflash, as http://127.0.0.1:8000, in place of the model of the file"
    parser.add_argument("--url", metavar="URL", help=text)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a plot, as study.svg")
    add_plugins(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run a study and print its table, or print differences."""
    import dflash
    from dflash.evaluation.study import compare_records
    from dflash.evaluation.study.study_file import StudyFile

    words = arguments.words
    if words[0] == "compare" and len(words) == 3:
        put(compare_records(*words[1:]))
        return 0
    if len(words) != 1 or words[0] == "compare":
        raise RequestError(f"study: wanted FILE.toml, or compare with two records or folders, got {' '.join(words):.80}")
    file = StudyFile.read(Path(words[0]))
    with ExitStack() as stack:
        lm: LM | str = arguments.url
        if lm is None:
            loaded = dflash.load(file.model, **{"isolate": False, **file.load}, progress=True)
            lm = stack.enter_context(loaded)
        try:
            found = dflash.study(lm, file.strategies, file.prompts, **file.arguments, progress=has_terminal())
        except KeyboardInterrupt:
            if "folder" in file.arguments:
                say(f"dflash: interrupted; the same command continues with the records in {file.arguments['folder']}")
            raise
    put(repr(found) if arguments.table == "markdown" else found.table(arguments.table))
    if arguments.plot is not None:
        found.plot().savefig(arguments.plot)
    return 0
