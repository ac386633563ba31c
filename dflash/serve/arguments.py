"""Arguments of the command line that the server and other commands share."""

import argparse
from typing import Any


def add_draft(parser: Any) -> None:
    """Add which draft model strategies guess with, and how it is run."""
    parser.add_argument("--draft", "--model-draft", metavar="FILE", help="draft model that strategies guess with")
    parser.add_argument("--draft-device", choices=("cpu", "cuda"), help="where it runs (default: beside the model)")
    parser.add_argument(
        "--draft-vocab", type=int, metavar="N", help="a block draft guesses from the first N tokens (default: all)"
    )


def draft_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Take what strategies by name want to know about the draft model beside its file, as far as it was said."""
    found = {"draft_device": arguments.draft_device, "draft_vocab": arguments.draft_vocab}
    return {name: value for name, value in found.items() if value is not None}
