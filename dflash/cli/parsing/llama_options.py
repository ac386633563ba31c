"""Options of llama-server, vLLM and SGLang that scripts may hold and that choose nothing here: always on, or refused."""

import argparse
from typing import Any, NoReturn

from dflash.errors import RequestError

_ALWAYS_ON = (
    *("--jinja", "--metrics", "--slots", "--props", "--cont-batching", "-cb", "--cache-prompt", "--no-context-shift"),
    *("--kv-unified", "-kvu", "--enable-auto-tool-choice", "--enable-prefix-caching", "--enable-chunked-prefill"),
)
"""Switches for features that are always on here."""

_NOT_BOTH = (
    "a model runs on GPUs or on the CPU as a whole; use --device cuda, --device cpu, or --devices 0,1 for several GPUs"
)
_SEVERAL = "use --devices 0,1 with --split tensor (for speed) or --split layer (for memory)"

_REFUSED = {
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): _NOT_BOTH,
    ("-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe", "-ot", "--override-tensor"): _NOT_BOTH,
    ("-sm", "--split-mode", "-tp", "--tensor-parallel-size", "--tp-size", "--pipeline-parallel-size"): _SEVERAL,
    ("-ts", "--tensor-split"): f"parts have equal sizes; {_SEVERAL}",
    ("--gpu-memory-utilization", "--mem-fraction-static"): "the memory of the KV cache is set by --kv-bytes",
    ("--kv-cache-dtype",): "the type of the KV cache is set by --kv",
    ("--dtype", "--quantization", "--load-format"): "the GGUF file has the types of its weights; drop it",
    ("--tool-call-parser", "--reasoning-parser"): "the chat template shows the form of calls and reasoning; drop it",
    ("--speculative-config", "--speculative-algorithm", "--num-speculative-tokens", "--speculative-draft-model-path"): (
        "speculative decoding is set by --strategy, such as dflash:15, and --draft FILE"
    ),
    ("-b", "--batch-size", "-ub", "--ubatch-size"): "the size of prompt chunks is chosen for the device; drop it",
    ("-fa", "--flash-attn", "--mlock"): "attention and loading have one implementation here; drop it",
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
