"""Command-line arguments shared by the server and other commands."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.errors import RequestError, did_you_mean
from dflash.json_types import JsonObject

if TYPE_CHECKING:
    from dflash.decode.verifiers import Verifier

KV_NAMES = "f32", "f16", "q8_0", "q4_0"
"""Names in `dflash.kernels.kv_types.KV_TYPES`, which is imported only once a command runs."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_MAX = 1 << 60
"""Most bytes that an option accepts: more than any machine has, and exact as a float."""

_DEVICES = "cpu", "cuda"


def add_model(parser: argparse.ArgumentParser, *, default: str | None = None, drafts: bool = False) -> None:
    """Add the model, or a draft model if `drafts`, and the device that it runs on."""
    text = "a GGUF file, demo, or a repository on the Hugging Face hub: org/repo, or hf:org/repo@revision:quant" + (
        ", or a draft model" if drafts else ""
    )
    if default is None:
        parser.add_argument("model", metavar="MODEL", help=text)
    else:
        parser.add_argument("model", metavar="MODEL", nargs="?", default=default, help=f"{text} (default {default})")
    text = "device to run on: auto, cpu, cuda, or a GPU as cuda:1 or CUDA1 (auto)"
    parser.add_argument("--device", "-dev", type=_device, default="auto", metavar="DEVICE", help=text)
    text = "number of the GPU to run on; the same as --device cuda:N"
    number: JsonObject = {"dest": "device", "type": _gpu, "default": argparse.SUPPRESS, "metavar": "N"}
    parser.add_argument("--target-gpu", "--main-gpu", "-mg", **number, help=text)
    add_devices(parser)
    add_plugins(parser)
    parser.add_argument("--threads", "-t", type=int, metavar="N", help="CPU threads (default: all cores)")
    text = "map the model file; --no-mmap reads it into memory first, on a CPU, where that may decode faster (--mmap)"
    parser.add_argument("--mmap", action=argparse.BooleanOptionalAction, default=True, help=text)
    parser.add_argument("--kv", choices=KV_NAMES, default="f16", help="type of the KV cache")
    text = "type of the products of prompts on a GPU; int8, on Hopper, is faster and less exact (f16)"
    parser.add_argument("--prefill-type", dest="prefill", choices=("f16", "int8"), default="f16", help=text)
    text = "most GPU memory for weights that stay unpacked for prompts, as 20G (half of the rest, if it holds half of them)"
    parser.add_argument("--unpacked-bytes", metavar="N", help=text)
    text = "most rows of a sequence in a step, its last token and draft tokens, 1 to 64; fewer take less memory "
    parser.add_argument("--pending", type=int, metavar="N", help=f"{text}(64; on a GPU 16 or 8 if the memory is short)")
    for option, part in (("k", "keys"), ("v", "values")):
        names = f"-ct{option}", f"--cache-type-{option}"
        parser.add_argument(*names, choices=KV_NAMES, help=f"type of the {part} in the KV cache (default: --kv)")


def add_plugins(parser: argparse.ArgumentParser) -> None:
    """Add the modules outside the package that register drafters and recoveries."""
    text = "module, or file that ends in .py, that registers drafters, recoveries, formats; may be given several times"
    parser.add_argument("--plugin", action="append", type=_plugin, metavar="MODULE", help=text)


def _plugin(name: str) -> str:
    from dflash.cli.plugins import load_plugin  # imports all drafters, which help texts do not need

    return load_plugin(name)


def _device(text: str) -> str:
    """Return the name of a device in the form of `dflash.load`; llama.cpp's ``CUDA1`` and ``none`` are known, too."""
    return "auto" if text.lower() == "auto" else _draft_device(text, ("auto", *_DEVICES))


def _draft_device(text: str, names: Sequence[str] = _DEVICES) -> str:
    """Return the name of a device other than ``auto``; an error lists `names`."""
    found = re.fullmatch(r"(cpu|none)|(cuda)|(?:cuda:?)?(\d+)", text.lower())
    if found is None:
        hint = "; several GPUs are --devices 0,1" if "," in text else did_you_mean(text, names)
        raise argparse.ArgumentTypeError(f"{text!r} must be {', '.join(names)}, or a GPU as cuda:1{hint}")
    return "cpu" if found[1] else found[2] or f"cuda:{int(found[3])}"


def _gpu(text: str) -> str:
    """Return the name of the GPU of a number."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be the number of a GPU, 0, 1 and so on")
    return f"cuda:{int(text)}"


def _names(text: str) -> list[str]:
    return text.split(",")


def add_devices(parser: argparse.ArgumentParser) -> None:
    """Add the GPUs to divide the model among, and the kind of split."""
    parser.add_argument("--devices", type=_names, metavar="N,...", help="GPUs to divide the model among, as 0,1")
    parser.add_argument(
        "--split", choices=("tensor", "layer"), help="divide each layer, for speed (default), or the layers, for memory"
    )


def load_settings(arguments: argparse.Namespace, **more: Any) -> JsonObject:
    """Return the arguments that are settings of `dflash.load`, and more of these, as its keyword arguments."""
    from dflash.model.loading.settings import LoadSettings

    keys, values = arguments.cache_type_k or arguments.kv, arguments.cache_type_v or arguments.kv
    found = {field.name: getattr(arguments, field.name) for field in fields(LoadSettings) if field.name in arguments}
    found |= {"kv": keys if keys == values else f"{keys}/{values}"}
    found["unpacked_bytes"] = byte_size("--unpacked-bytes", arguments.unpacked_bytes, least=0)
    return {**found, "chat_template": getattr(arguments, "chat_template_file", None), **more}


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add the maximum length of a sequence."""
    text = "maximum tokens of a sequence (default: the model's)"
    parser.add_argument("--context", "-c", "--ctx-size", "--max-model-len", type=int, metavar="N", help=text)


def add_template_file(parser: argparse._ActionsContainer) -> None:
    """Add the chat template to use in place of that in the model file, and what it makes of control tokens in messages."""
    text = "Jinja file of a chat template to use in place of that in the model file"
    parser.add_argument("--chat-template-file", type=Path, metavar="FILE", help=text)
    text = "take control tokens that messages spell out, as <|im_end|>, for control tokens and not for text"
    parser.add_argument("--trusted-messages", action="store_true", help=text)


def add_draft(parser: argparse._ActionsContainer) -> None:
    """Add the draft model of strategies and its settings."""
    text = "draft model of the strategy; auto: the one published for the model"
    parser.add_argument("--draft", "-md", "--model-draft", action=_AsTyped, metavar="FILE", help=text)
    text = "device of the draft model: cpu, cuda, or a GPU of its own as cuda:1 or CUDA1 (default: that of the model)"
    names = "--draft-device", "--device-draft", "-devd"
    parser.add_argument(*names, dest="draft_device", action=_AsTyped, type=_draft_device, metavar="DEVICE", help=text)
    text = "number of the GPU of the draft model; the same as --draft-device cuda:N"
    kind: JsonObject = {"type": _gpu, "action": _AsTyped, "default": argparse.SUPPRESS}
    parser.add_argument("--draft-gpu", dest="draft_device", **kind, metavar="N", help=text)
    text = "draft vocabulary of a block draft or a head: the first N tokens (default: adapts to the output)"
    parser.add_argument("--draft-vocab", action=_AsTyped, type=int, metavar="N", help=text)


def add_verifier(parser: argparse._ActionsContainer) -> None:
    """Add how draft tokens are accepted; see `named_verifier`."""
    text = "rule by which draft tokens are accepted: coupled, which never changes the output (default); rejection or block, "
    text += "which keep its distribution; typical[:EPSILON[:DELTA]], which is lossy"
    parser.add_argument("--verifier", metavar="NAME", help=text)
    parser.add_argument(
        "--synthetic-acceptance",
        metavar="LENGTH",
        help="for measurements: accept draft tokens by a mean acceptance length, not by what the model predicts; as 2.52, "
        "multinomial:2.52, shares by position 0.9,0.7 or golden:qwen3.8-27b:mtp:3:thinking; texts are meaningless",
    )


def named_verifier(arguments: argparse.Namespace) -> "Verifier":
    """Return the verifier that the arguments name."""
    from dflash.decode.verifiers import chosen

    return chosen(arguments.verifier, arguments.synthetic_acceptance)


def draft_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given draft options, except the file, for strategies by name."""
    found = {"draft_device": arguments.draft_device, "draft_vocab": arguments.draft_vocab}
    return {name: value for name, value in found.items() if value is not None}


def check_draft(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Check that the named strategies accept the given draft options."""
    import dflash.decode.drafters  # noqa: F401  registers the names
    from dflash.decode.registry import check_draft_options

    typed = getattr(arguments, "typed", {})
    check_draft_options(names, lambda option, _: typed[option], draft=arguments.draft, **draft_settings(arguments))


class _AsTyped(argparse.Action):
    """Store a value, and in ``typed`` the words that gave it, for messages: several options may have one destination."""

    def __call__(self, _: Any, namespace: argparse.Namespace, value: Any, option: str | None = None) -> None:
        setattr(namespace, self.dest, value)
        words = f"{option} {value.removeprefix('cuda:') if self.type is _gpu else value}"
        namespace.typed = {**getattr(namespace, "typed", {}), self.dest: words}


def byte_size(option: str, text: str | None, *, least: int = 1) -> int | None:
    """Return the bytes that a text names, as ``4G``, ``512MiB``, ``1.5g`` or ``1048576``; None for None.

    K, M, G and T are powers of 1024.
    """
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * (1 << _SHIFTS[match[2].lower()])) if match and len(match[1]) < 20 else -1
    if not least <= size <= _MAX:
        raise RequestError(f"{option}: must be a number of bytes, as 4G, 512M or 1048576, got {text[:40]!r}")
    return size
