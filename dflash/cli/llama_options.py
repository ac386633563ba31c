"""Options of llama-server that scripts may hold and that choose nothing here: always on, or refused with a reason."""

import argparse
from typing import Any, NoReturn

from dflash.errors import RequestError

_ALWAYS_ON = (
    *("--jinja", "--metrics", "--slots", "--props", "--cont-batching", "-cb", "--cache-prompt", "--no-context-shift"),
    *("--kv-unified", "-kvu"),
)
"""Switches for features that are always on here."""

_ONE_DEVICE = "a model runs on one device as a whole; use --device cuda or --device cpu"

_REFUSED = {
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): _ONE_DEVICE,
    ("-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe", "-ot", "--override-tensor"): _ONE_DEVICE,
    ("-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"): (
        "a model runs on one device; choose it with CUDA_VISIBLE_DEVICES"
    ),
    ("-b", "--batch-size", "-ub", "--ubatch-size"): "the size of prompt chunks is chosen for the device; drop it",
    ("-fa", "--flash-attn", "--no-mmap", "--mlock"): "attention and loading have one implementation here; drop it",
    ("-mm", "--mmproj", "--lora", "--embedding", "--embeddings", "--rerank", "--reranking"): "is not supported",
    ("--chat-template",): "names no template here; give a file to --chat-template-file",
    ("-to", "--timeout"): "limits reading and writing there; a request is limited by --request-timeout",
    ("--context-shift",): "a full context ends the output; drop it",
    ("--reasoning-format",): "reasoning is always apart from the text; drop it",
    ("--reasoning-budget",): "is a field of requests here, thinking_token_budget",
    ("-cram", "--cache-ram", "--no-cache-prompt", "--cache-reuse"): "the prefix cache is set by --prefix-cache-mib",
    ("--slot-save-path",): "states are saved with --prefix-cache-folder",
    ("--ssl-key-file", "--ssl-cert-file"): "this server speaks HTTP; put a proxy with TLS in front of it",
}


class _RefusedOption(argparse.Action):
    """An option that has no meaning here; `const` says why."""

    def __call__(self, *words: Any) -> NoReturn:
        """Raise the error; the last of `words` is the option."""
        option = words[-1]
        raise RequestError(f"{option}: {self.const}")


def add_llama_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; those without a meaning here raise a `RequestError` when they are parsed."""
    parser.add_argument(*_ALWAYS_ON, action="store_true", help="always on; accepted for scripts of llama-server")
    for options, reason in _REFUSED.items():
        parser.add_argument(*options, action=_RefusedOption, nargs="?", const=reason, dest="refused", help=argparse.SUPPRESS)
