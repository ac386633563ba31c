"""`info`: what a model is, from its header."""

import argparse
import json
from typing import Any

from dflash.commands.terminal import size

HELP = "tell what a model is and what it takes to run it"

_ABILITIES = {
    "system": "system message",
    "tools": "tools",
    "parallel_calls": "parallel calls",
    "thinking": "thinking can be turned off",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, demo, or hf:org/repo:quant")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    parser.add_argument("--threads", type=int, metavar="N", help="cores to use (default: all)")
    parser.add_argument("--kv", choices=("f16", "f32"), default="f16", help="type of the KV cache")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Print it; no weight is read and nothing is compiled."""
    from dflash.model.gguf import GGUFFile
    from dflash.model.hub import resolve
    from dflash.overview import overview

    with GGUFFile.open(resolve(arguments.model)) as file:
        about = overview(file, kv=arguments.kv, threads=arguments.threads, device=arguments.device)
    print(json.dumps(about, ensure_ascii=False, indent=2) if arguments.json else as_text(about))
    return 0


def as_text(about: dict[str, Any]) -> str:
    """Lay out an overview for people.

    Parameters
    ----------
    about : dict
        From `dflash.overview.overview`.
    """
    model, memory, tokenizer, device = (about[name] for name in ("model", "memory", "tokenizer", "device"))
    layers, pending = model["layers"], size(memory["pending_per_sequence"])
    lines = [
        ("model", model["name"]),
        ("file", model["files"][0] + (f" and {len(model['files']) - 1} more" if len(model["files"]) > 1 else "")),
        ("architecture", f"{model['architecture']}, {model['parameters'] / 1e6:,.0f} M parameters, width {model['width']}"),
        ("layers", ", ".join(f"{n} {kind}" for kind, n in layers.items() if n)),
        ("context", f"{model['context']:,} tokens"),
        ("weights", size(memory["weights"])),
        *(("", _mix(kind, part, about["kernels"])) for kind, part in about["quantization"].items()),
        ("KV cache", f"{size(memory['kv_per_1000_tokens'])} for 1,000 tokens"),
        ("state", f"{size(memory['state_per_sequence'])} a sequence, and for pending tokens {pending}"),
        (
            "tokenizer",
            f"{tokenizer['model']} ({tokenizer['pre']}), {tokenizer['tokens']:,} tokens, end {tokenizer['end']}",
        ),
        ("", tokenizer["normalizer"]),
        ("chat template", _template(about["template"])),
        ("device", _device(device)),
    ]
    if "no_gpu" in device:
        lines.append(("", f"no GPU: {device['no_gpu']}"))
    if "experts" in model:
        lines.insert(4, ("experts", f"{model['experts']['used']} of {model['experts']['all']} a token"))
    return "\n".join(f"{name:<14} {value}" for name, value in lines)


def _device(device: dict[str, Any]) -> str:
    if device["kind"] == "cpu":
        return f"cpu, {device['processor']}, {device['threads']} threads, {' '.join(device['simd'])}"
    return f"{device['kind']}, {device['processor']}, {size(device['memory'])}, {device['architecture']}"


def _mix(kind: str, part: dict[str, int], kernels: dict[str, str]) -> str:
    return f"{kind:<8} {part['tensors']:>5} tensors {size(part['bytes']):>10}   {kernels[kind]}"


def _template(template: dict[str, Any] | None) -> str:
    if template is None:
        return "none"
    if "error" in template:
        return f"unusable: {template['error']}"
    able = [word for name, word in _ABILITIES.items() if template[name]]
    return ", ".join(able) or "messages only"
