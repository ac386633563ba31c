"""Command-line arguments of the server; names are those of llama-server where the meaning is the same."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from dflash.cli.model_arguments import (
    add_context,
    add_draft,
    add_model,
    add_template_file,
    add_verifier,
    byte_size,
)
from dflash.cli.parsing.llama_options import add_llama_options
from dflash.cli.parsing.parser import Parser, program
from dflash.errors import RequestError
from dflash.json_types import JsonObject

HELP = "serve a model with OpenAI's and Anthropic's HTTP APIs"
USAGE = "[options] [MODEL]"
EXAMPLES = (
    ("demo", "http://127.0.0.1:8000 with a chat page"),
    ("model.gguf --context 32768 --strategy mtp:3 --port 8080", "with a strategy for requests that name none"),
)

DEFAULT_MODEL = "demo"

_SAMPLING: dict[str, tuple[tuple[str, ...], type, str, str]] = {
    "temperature": (("--temp", "--temperature"), float, "T", "0 is greedy (0)"),
    "top_k": (("--top-k",), int, "K", "sample from the K most likely tokens; 0 is all (0)"),
    "top_p": (("--top-p",), float, "P", "sample from the most likely tokens whose probabilities sum to P (1)"),
    "min_p": (("--min-p",), float, "P", "drop tokens below P times the largest probability (0)"),
    "repetition_penalty": (("--repeat-penalty", "--repetition-penalty"), float, "X", "above 1: repeat less (1)"),
    "presence_penalty": (("--presence-penalty",), float, "X", "subtracted from the logit of every token in the output (0)"),
    "frequency_penalty": (("--frequency-penalty",), float, "X", "subtracted for each occurrence in the output (0)"),
    "seed": (("-s", "--seed"), int, "N", "the same seed gives the same output; -1 is random (random)"),
}


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the server.

    Returns: ``model`` is set, and ``context`` is None for the model's own; ``template_kwargs`` holds the variables of the
        chat template.
    """
    arguments = parser().parse_args(words)
    if arguments.model_option is not None:
        if arguments.model not in (DEFAULT_MODEL, arguments.model_option):
            raise RequestError(f"--model {arguments.model_option}: another model is given already, {arguments.model}")
        arguments.model = arguments.model_option
    arguments.context = arguments.context or None
    arguments.kv_bytes = byte_size("--kv-bytes", arguments.kv_bytes)
    arguments.swap_bytes = byte_size("--swap-bytes", arguments.swap_bytes)
    arguments.template_kwargs = _template_kwargs(arguments.chat_template_kwargs)
    return arguments


def _template_kwargs(text: str | None) -> JsonObject:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise RequestError(f"--chat-template-kwargs: {text!r:.80} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestError(f"--chat-template-kwargs: must be a JSON object, got {text!r:.80}")
    return value


def sampling_defaults(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling parameters and the limit of requests that leave them out, by the name of their field."""
    from dflash.decode.registry.recoveries import MAX_TOKENS
    from dflash.decode.sampling.params import Sampling

    if arguments.max_tokens is not None and not (arguments.max_tokens == -1 or 1 <= arguments.max_tokens <= MAX_TOKENS):
        raise RequestError(f"-n: must be -1 or 1 to {MAX_TOKENS}, got {arguments.max_tokens}")
    given = {name: value for name in _SAMPLING if (value := getattr(arguments, name)) is not None}
    if given.get("seed") == -1:
        del given["seed"]
    try:
        Sampling(**given)
    except RequestError as error:
        name, _, reason = str(error).partition(": ")
        raise RequestError(f"{_SAMPLING[name][0][0]}: {reason}") from error
    return given if arguments.max_tokens in (None, -1) else {**given, "max_tokens": arguments.max_tokens}


def parser() -> Parser:
    """Return the parser of the server's arguments."""
    start = program()
    prog = start if start.endswith(".serve") else f"{start} serve"
    parser = Parser(prog, HELP, USAGE, EXAMPLES, allow_abbrev=False)
    add_model(parser, default=DEFAULT_MODEL)
    parser.add_argument("-m", "--model", dest="model_option", metavar="MODEL", help="the same as MODEL")
    parser.add_argument(
        "-hf", "--hf-repo", dest="model_option", type="hf:{}".format, metavar="REPO", help="the same as hf:REPO"
    )
    add_context(parser)
    _add_address(parser)
    parser.add_argument(
        *("--sequences", "-np", "--parallel", "--max-num-seqs"),
        type=int,
        default=8,
        metavar="N",
        help="sequences decoded at the same time (8)",
    )
    parser.add_argument(
        "--request-timeout",
        type=float,
        default=0,
        metavar="S",
        help="seconds after which a request ends with an error, waiting and prompt included; 0 is no limit (0)",
    )
    parser.add_argument(
        "--max-step-ms",
        type=float,
        metavar="MS",
        help="most milliseconds by which a prompt delays the next token of running answers (265 on a GPU, 400 on a CPU; a "
        "sixth more for each 64 answers beyond 64); 0 is no limit",
    )
    parser.add_argument(
        "--kv-bytes",
        metavar="N",
        help="bytes of the KV cache of all sequences together, as 4G or 512M "
        "(half of the free memory, or a quarter on a GPU)",
    )
    parser.add_argument(
        "--swap-bytes",
        metavar="N",
        help="host memory for KV pages of preempted sequences, as 8G; sequences that could need more wait to start "
        "(size of the KV cache, on a GPU half of the free host memory if that is more)",
    )
    parser.add_argument(
        "--offered-tools-only",
        action="store_true",
        help="show calls of functions that a request does not offer as text (default: clients get them as calls)",
    )
    _add_prefix_cache(parser)
    _add_strategy(parser)
    _add_sampling(parser)
    _add_logs(parser)
    parser.add_argument(
        "--grace", type=float, default=10, metavar="S", help="seconds that open requests may take at shutdown (10)"
    )
    add_llama_options(parser)
    return parser


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000); 0 chooses a free one")
    parser.add_argument(
        "--model-name",
        "-a",
        "--alias",
        "--served-model-name",
        action="append",
        metavar="NAME",
        help="name of the model in the API; may be repeated",
    )
    parser.add_argument("--api-key", metavar="KEY,...", help="keys of which requests must carry one (or set DFLASH_API_KEY)")
    parser.add_argument(
        "--api-key-file", metavar="FILE", help="file with a key in each line, which keeps them out of process lists"
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web origin whose pages may use the server, as https://chat.example; may be repeated; * is any (default: none)",
    )
    parser.add_argument(
        "--strict-model", action="store_true", help="refuse requests for other model names (default: every name is served)"
    )
    add_template_file(parser)
    parser.add_argument(
        "--chat-template-kwargs",
        metavar="JSON",
        help="variables of the chat template for requests that do not set them, as '{\"preserve_thinking\": true}'",
    )
    parser.add_argument(
        "--keep-billing-header",
        action="store_true",
        help="keep Claude Code's x-anthropic-billing-header line in prompts, which differs between sessions (default: drop)",
    )


def _add_prefix_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefix-cache-mib",
        type=int,
        metavar="N",
        help="MiB of states saved for later prompts with the same beginning (what fits, see docs/prefix-cache.md); 0: none",
    )
    parser.add_argument(
        "--prefix-cache-folder", metavar="FOLDER", help="folder for states that leave the memory of the prefix cache (none)"
    )
    parser.add_argument(
        "--prefix-cache-disk-mib", type=int, metavar="N", help="MiB of the files in --prefix-cache-folder (16384)"
    )
    parser.add_argument(
        "--prefix-cache-inexact",
        action="store_true",
        help="use saved states at any boundary; on a GPU the last bits of logits may change",
    )
    parser.add_argument(
        "--no-prefix-cache-reread",
        action="store_true",
        help="do not prefill answers again, from which later turns begin on a GPU",
    )


def _add_strategy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strategy", metavar="NAME", help="strategy of requests that name none (plain)")
    add_draft(parser)
    add_verifier(parser)
    parser.add_argument(
        "--fixed-drafts",
        action="store_true",
        help="always draft as many tokens as the strategy says (default: fewer, down to none, where more would make answers "
        "slower, as with many requests at once; the tokens are the same)",
    )
    parser.add_argument(
        "--allow-strategies",
        metavar="NAME,...",
        help="strategies that requests may name, as plain,lookup,dflash; none: requests may not choose (default: all)",
    )
    parser.add_argument(
        "--recover",
        metavar="NAME,...",
        help="recoveries of requests that name none, as loop,min:20; info lists all "
        "(default: from DFLASH_STALL_TOOL_PREFIX and DFLASH_MIN_TOKENS, else none)",
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling of requests that leave it out")
    group.add_argument(
        "-n", "--predict", "--n-predict", dest="max_tokens", type=int, metavar="N", help="output tokens; -1 is no limit (-1)"
    )
    for name, (options, kind, metavar, text) in _SAMPLING.items():
        group.add_argument(*options, dest=name, type=kind, metavar=metavar, help=text)


def _add_logs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("logs")
    group.add_argument("--no-access-log", action="store_true", help="no line on stderr for each request")
    group.add_argument(
        "--debug-log", metavar="FILE", help="append requests and responses with their content as JSON lines (mode 0600)"
    )
    group.add_argument("--debug-log-mib", type=int, default=64, metavar="N", help="maximum MiB of --debug-log (64)")
