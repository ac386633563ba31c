"""`capture`: record the hidden states that drafts read."""

import argparse
from pathlib import Path

from dflash.cli import arguments as common
from dflash.cli.model_arguments import add_context, add_model, byte_size
from dflash.cli.terminal import has_terminal, put, size
from dflash.errors import RequestError

HELP = "record the hidden states of a model that drafts read"
USAGE = "[options] MODEL --folder FOLDER"
EXAMPLES = (
    ("demo --folder features --prompts code -n 64", "the layers that its block draft reads, on its own output"),
    ("other.gguf --folder others --texts features", "another file of the model, on the same tokens"),
    ("demo --folder head --layers mtp --max-bytes 2G", "the output of the last norm, which an MTP head reads"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser)
    add_context(parser)
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="FOLDER", help="folder of the records, a file each text"
    )
    parser.add_argument(
        "--layers", default="dflash", metavar="N,...", help="layers, or the strategy that reads them (dflash)"
    )
    parser.add_argument("--draft", metavar="FILE", help="draft model of that strategy")
    parser.add_argument("--prompts", metavar="SET,...", help="prompt sets, as for bench (code)")
    parser.add_argument("--texts", type=Path, metavar="FOLDER", help="records whose texts are read in place of prompts")
    parser.add_argument("-n", "--generate", type=int, default=0, metavar="N", help="output tokens after each prompt (0)")
    parser.add_argument("--max-bytes", default="1G", metavar="SIZE", help="maximum bytes of the folder, as 4G (1G)")
    parser.add_argument("--dtype", choices=("f16", "f32"), default="f16", help="type of the features (f16)")


def main(arguments: argparse.Namespace) -> int:
    """Record, and print what the folder holds."""
    import dflash

    if arguments.texts is not None and arguments.prompts is not None:
        raise RequestError("--texts and --prompts: give one of them")
    words = arguments.layers.split(",")
    numbers = [int(word) for word in words] if all(word.strip().isdecimal() for word in words) else None
    max_bytes = byte_size("--max-bytes", arguments.max_bytes)
    assert max_bytes is not None, "has a default"
    prompts = arguments.texts
    if prompts is None:
        prompts = [case for name in (arguments.prompts or "code").split(",") for case in dflash.load_prompts(name)]
    with common.load(arguments) as lm:
        found = dflash.capture(
            lm,
            prompts,
            dflash.Strategy.named(arguments.layers, arguments.draft) if numbers is None else numbers,
            folder=arguments.folder,
            max_bytes=max_bytes,
            max_tokens=arguments.generate,
            dtype=arguments.dtype,
            progress=has_terminal(),
        )
    end = "" if found.complete else "; the next text exceeds --max-bytes"
    put(f"{arguments.folder}: {found.texts} texts, {found.tokens:,} tokens, {size(found.n_bytes)}{end}")
    return 0
