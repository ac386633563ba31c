"""Arguments of the command line that the server and other commands share."""

import argparse
from collections.abc import Sequence
from typing import Any


def add_model(parser: argparse.ArgumentParser, *, default: str | None = None, drafts: bool = False) -> None:
    """Add the model, or a draft model where `drafts` are welcome too, and the machine that it runs on."""
    text = "a GGUF file, demo, or hf:org/repo@revision:quant (revision and quant may be left out)" + (
        "; or a draft model" if drafts else ""
    )
    if default is None:
        parser.add_argument("model", metavar="MODEL", help=text)
    else:
        parser.add_argument("model", metavar="MODEL", nargs="?", default=default, help=f"{text} (default {default})")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    parser.add_argument("--threads", type=int, metavar="N", help="cores to use (default: all)")
    parser.add_argument("--kv", choices=("f16", "f32"), default="f16", help="type of the KV cache")


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add how long a text may be."""
    parser.add_argument("--context", type=int, metavar="N", help="tokens that a text may have (default: the model's)")


def add_draft(parser: Any) -> None:
    """Add which draft model strategies guess with, and how it is run."""
    parser.add_argument("--draft", "--model-draft", metavar="FILE", help="draft model that strategies guess with")
    parser.add_argument("--draft-device", choices=("cpu", "cuda"), help="where it runs (default: beside the model)")
    parser.add_argument(
        "--draft-vocab",
        type=int,
        metavar="N",
        help="a block draft or MTP head guesses from the first N tokens (default: as texts go)",
    )


def draft_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Take what strategies by name want to know about the draft model beside its file, as far as it was said."""
    found = {"draft_device": arguments.draft_device, "draft_vocab": arguments.draft_vocab}
    return {name: value for name, value in found.items() if value is not None}


def check_draft(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Refuse what is said about a draft model that none of some strategies, by name, guesses with.

    Raises
    ------
    RequestError
        If there is such an argument; the message says which strategies take it.
    """
    import dflash.decode.drafters  # noqa: F401  registers the names
    from dflash.decode.registry import check_draft_options

    check_draft_options(names, _as_option, draft=arguments.draft, **draft_settings(arguments))


def _as_option(argument: str, value: Any) -> str:
    return f"--{argument.replace('_', '-')} {value}"
