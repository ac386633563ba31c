"""`export`: write a draft or a head as a folder of safetensors."""

import argparse
from pathlib import Path

from dflash.cli.terminal import put, size

HELP = "write a draft model or a head in the layout of another program"
USAGE = "[options] DRAFT FOLDER"
EXAMPLES = (
    ("z-lab-draft out --target org/model", "a block draft for speculators and vLLM"),
    ("head out --layout specforge", "an EAGLE-3 head of speculators for SpecForge and SGLang"),
    ("Qwen3.5-4B-BF16.gguf out", "the MTP head of a model"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from dflash.model.export import LAYOUTS

    parser.add_argument("draft", metavar="DRAFT", help="a draft model or head: a folder, a GGUF file, or hf:org/repo")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to write")
    parser.add_argument("--layout", choices=LAYOUTS, default="speculators", help="layout of the folder (speculators)")
    parser.add_argument("--target", metavar="REPO", help="repository of the target, which speculators names")


def main(arguments: argparse.Namespace) -> int:
    """Write the folder and print what it holds."""
    from dflash.model.export import export_draft

    found = export_draft(arguments.draft, arguments.folder, arguments.layout, arguments.target)
    put(f"{found.folder}: {found.kind}, {size(found.n_bytes)}, layout of {arguments.layout}")
    return 0
