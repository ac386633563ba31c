"""`info`: describe a model from its file header."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dflash.cli.model_arguments import add_model, load_settings
from dflash.cli.terminal import put, size, wrapped
from dflash.errors import RequestError
from dflash.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from dflash.model.gguf.file import GGUFFile
    from dflash.model.loading.settings import LoadSettings

HELP = "describe a model and the memory it needs"
USAGE = "[options] MODEL"
EXAMPLES = (
    ("demo", "architecture, memory, kernels, names of strategies"),
    ("model.gguf --kv q8_0", "with another KV cache"),
    ("demo --kernels 1 64", "the network, and which kernel runs each op"),
)

_WORDS = """Each op, and below it numbers of rows with the kernels that run it. Layers that differ in ops or types of weights
stand apart. On a CPU, joined is one launch with its neighbours, alone a launch of its own; dot multiplies few rows, tiles
many. Not shown: rotate also writes keys and values, which attend reads; conv and delta have a state of the sequence."""

_ABILITIES = {
    "system": "system message",
    "tools": "tools",
    "parallel_calls": "parallel calls",
    "thinking": "thinking can be turned off",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser, drafts=True)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--kernels",
        nargs="*",
        type=int,
        metavar="ROWS",
        help="also print the ops of the network and the kernel of each for some numbers of rows (1 8 16 64) and for a "
        "prompt; on a GPU this loads the model",
    )


def main(arguments: argparse.Namespace) -> int:
    """Print the description. Reads no weights and compiles nothing."""
    from dflash.kernels.ragged import PENDING
    from dflash.model.describe import overview
    from dflash.model.draft import is_draft
    from dflash.model.draft.describe import draft_overview
    from dflash.model.gguf.file import GGUFFile
    from dflash.model.loading.hub import resolve
    from dflash.model.loading.settings import LoadSettings
    from dflash.model.loading.target import split_overview

    path = resolve(arguments.model, folders=True)
    if is_draft(path):
        if arguments.kernels is not None:
            raise RequestError("--kernels lists the network of a target model, this file is a draft model")
        about = draft_overview(path)
    else:
        with GGUFFile.open(path) as file:
            device = "cuda" if arguments.devices else arguments.device
            pending = PENDING if arguments.pending is None else arguments.pending
            settings = load_settings(arguments)
            about = overview(file, kv=settings["kv"], pending=pending, threads=arguments.threads, device=device)
            if about["device"]["kind"] == "cuda":
                about["device"]["prefill"] = settings["prefill"]
            about |= _names(file) | _parsers(file.metadata)
            if arguments.devices:
                about["plan"] = split_overview(file, LoadSettings(**settings))
            if arguments.kernels is not None:
                about["program"] = _program(file, arguments, LoadSettings(**settings), about["device"]["kind"])
    lay_out = draft_as_text if "draft" in about else as_text
    put(json.dumps(about, ensure_ascii=False, indent=2) if arguments.json else lay_out(about))
    if "program" in about and not arguments.json:
        put(program_as_text(about["program"]))
    return 0


def _program(file: "GGUFFile", arguments: argparse.Namespace, settings: "LoadSettings", kind: str) -> list[JsonObject]:
    """Return the ops of the network, and the kernels of each by number of rows."""
    from dflash.model.config import Config
    from dflash.model.loading.target import load_model
    from dflash.model.run.listing import PROMPT, device_listing, host_listing
    from dflash.model.weights import Weights

    rows = *(arguments.kernels or (1, 8, 16, 64)), PROMPT
    if bad := [n for n in rows if not 1 <= n <= PROMPT]:
        raise RequestError(f"--kernels: rows must be 1 to {PROMPT}, got {bad[0]}")
    if kind == "cpu":
        config = Config.from_gguf(file.metadata, file.tensors)
        parts = host_listing(Weights(file, config), config, rows)
    else:
        model = load_model(arguments.model, settings).model
        assert model.device == "cuda"
        parts = device_listing(model, rows)
    names = [*map(str, rows[:-1]), "prompt"]
    return [
        {
            "layers": list(part.layers),
            "ops": [{"op": line.op, "kernels": dict(zip(names, line.kernels, strict=True))} for line in part.lines],
        }
        for part in parts
    ]


def program_as_text(program: list[JsonObject]) -> str:
    """Format the ops of a network as text: below each op its kernels, by the numbers of rows that have the same."""
    from dflash.model.run.rules import RULES

    lines = [f"\n{_WORDS}"]
    for part in program:
        layers = ", ".join(map(str, part["layers"]))
        lines.append(f"\nlayers {layers}" if layers else "\noutside the layers")
        for op in part["ops"]:
            lines.append(f"  {op['op']}")
            alike = {kernel: [n for n, each in op["kernels"].items() if each == kernel] for kernel in op["kernels"].values()}
            lines.append("      " + "; ".join(f"{', '.join(of)}: {kernel}" for kernel, of in alike.items()))
    lines += ["\nrules that bench --without switches off", *(f"  {name:<14} {text}" for name, text in RULES.items())]
    return "\n".join(lines)


def _names(file: "GGUFFile") -> JsonObject:
    """Return the names that ``--strategy`` and ``--recover`` take, the draft model of ``auto``, and what names lack."""
    import dflash.decode.drafters
    import dflash.generation.recovery  # noqa: F401  both register names
    from dflash.decode.drafters.missing_files import known_draft, strategies_without_files
    from dflash.decode.registry import DRAFTERS
    from dflash.decode.registry.recoveries import entries

    strategies = [form for entry in DRAFTERS.values() for form in entry.forms]
    return {
        "strategies": strategies,
        "recoveries": [form for entry in entries() for form in entry.forms],
        "draft_auto": known_draft(file),
        "without_files": strategies_without_files(file),
    }


def _parsers(metadata: JsonMapping) -> dict[str, dict[str, str | None]]:
    """Return the names of the parsers that the chat template chooses; nothing without a template."""
    import dflash.generation.parsers  # noqa: F401  registers names
    from dflash.generation.parsers.registry import matching

    source = metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return {}
    return {"parsers": {"reasoning": matching("reasoning", source), "tool": matching("tool", source)}}


def draft_as_text(about: JsonObject) -> str:
    """Format the description of a draft model, as `dflash.model.draft.describe.draft_overview` returns it, as text."""
    draft, memory = about["draft"], about["memory"]
    heads, kv_heads, head_size = draft["heads"]
    ids = draft["target_layer_ids"]
    lines = [
        ("draft", f"{draft['name']}, {draft['parameters'] / 1e6:,.0f} M parameters, for a model of width {draft['width']}"),
        ("file", draft["file"]),
        ("reads", f"outputs of target layers {ids if isinstance(ids, str) else str(ids)[1:-1]}, width {draft['width']}"),
        *(_head(draft) if draft["kind"] == "eagle3" else _block(draft)),
        ("heads", f"{heads} of {head_size}, {kv_heads} of keys and values, rotation base {draft['rope_base']:g}"),
    ]
    if "selector" in draft:
        selector, conv = draft["selector"], draft["convolution"]
        lines.append(("selector", f"{selector['candidates']} candidates, rank {selector['rank']}"))
        lines.append(("convolution", f"{conv['taps']} taps, groups of {conv['group']}"))
    if "markov" in draft:
        confidence = "with confidence head" if draft["confidence"] else "without confidence head"
        lines.append(("Markov head", f"rank {draft['markov']['rank']}, {confidence}"))
    lines.append(("weights", size(memory["weights"])))
    lines += [
        ("", f"{kind:<8} {part['tensors']:>5} tensors {size(part['bytes']):>10}")
        for kind, part in about["quantization"].items()
    ]
    if "kv_per_token" in memory:
        lines.append(("KV cache", f"f16, {size(memory['kv_per_token'])} per token"))
    else:
        lines.append(("context", f"{size(memory['context_per_sequence'])} per sequence"))
    return _aligned(lines)


def _block(draft: JsonObject) -> Iterator[tuple[str, str]]:
    yield "block", f"{draft['block']} rows, {draft['draft_tokens']} draft tokens, mask token {draft['mask']}"
    for i, layer in enumerate(draft["layers"]):
        yield "layers" if i == 0 else "", _layer(i, layer)


def _head(draft: JsonObject) -> Iterator[tuple[str, str]]:
    yield "vocabulary", f"drafts {draft['draft_vocabulary']:,} of {draft['vocabulary']:,} tokens"
    norms = {"none": "features as they are", "whole": "norm of all features", "layers": "norm of each layer's features"}
    residual = "normed" if draft["normed_residual"] else "plain"
    fed_back = ", feeds back normed states" if draft["normed_output"] else ""
    yield "layer", f"{norms[draft['feature_norm']]}, {residual} residual stream{fed_back}"


def _layer(i: int, layer: JsonObject) -> str:
    context = f"the last {layer['window']} positions" if layer["window"] else "all positions"
    return f"{i}: attends to {context}; inside the block {'to earlier rows' if layer['causal'] else 'to all rows'}"


def _aligned(lines: list[tuple[str, str]]) -> str:
    return "\n".join(wrapped(f"{name:<14} {value}", " " * 15, sys.stdout) for name, value in lines)


def as_text(about: JsonObject) -> str:
    """Format the description of a model as text.

    about: from `dflash.model.describe.overview`, and names of strategies and recoveries if they are to be listed.
    """
    model, memory, tokenizer, device = (about[name] for name in ("model", "memory", "tokenizer", "device"))
    layers, pending = model["layers"], f"{size(memory['pending_per_sequence'])} for {memory['pending_rows']} pending tokens"
    lines = [
        ("model", model["name"]),
        ("file", model["files"][0] + (f" and {len(model['files']) - 1} more" if len(model["files"]) > 1 else "")),
        ("architecture", f"{model['architecture']}, {model['parameters'] / 1e6:,.0f} M parameters, width {model['width']}"),
        ("layers", ", ".join(f"{n} {kind}" for kind, n in layers.items() if n)),
        *([("windows", _windows(model["windows"]))] if "windows" in model else []),
        ("context", f"{model['context']:,} tokens"),
        ("weights", size(memory["weights"])),
        *([("", _unpacked(memory))] if device["kind"] != "cpu" else []),
        *(("", _mix(kind, part, about["kernels"])) for kind, part in about["quantization"].items()),
        ("KV cache", _cache(memory)),
        *([("", _quality(memory["kv_on_the_demo"]))] if "kv_on_the_demo" in memory else []),
        ("state", f"{size(memory['state_per_sequence'])} per sequence, {pending}"),
        ("tokenizer", f"{tokenizer['model']} ({tokenizer['pre']}), {tokenizer['tokens']:,} tokens, end {tokenizer['end']}"),
        ("", tokenizer["normalizer"]),
        *([("", _without(tokenizer["missing_bytes"]))] if tokenizer["missing_bytes"] else []),
        ("chat template", _template(about["template"])),
        *([("", _parsed(about["parsers"], about["template"]))] if about.get("parsers") else []),
        ("device", _device(device)),
        *([("prompts", f"products of {device['prefill']}")] if device.get("prefill", "f16") != "f16" else []),
    ]
    if "limit" in about:
        limit = about["limit"]
        read, rate = size(limit["bytes_per_token"]), f"{limit['bandwidth'] / 1e12:.2f} TB/s"
        lines.append(("", f"a decoded token reads {read}: at most {limit['tokens_per_second']:,.0f} tokens/s at {rate}"))
    if "no_gpu" in device:
        lines.append(("", f"no GPU: {device['no_gpu']}"))
    if "plan" in about:
        lines += _plan(about["plan"])
    if "draft_vocab_steps" in model:
        vocabularies = model["draft_vocab_steps"]
        reduced, full = " or ".join(f"{n:,}" for n in vocabularies["common"]), f"{vocabularies['all']:,}"
        drafters = "block drafts and the MTP head" if layers["mtp"] else "block drafts"
        lines.append(("draft vocab", f"{reduced} of {full} tokens for {drafters}, while the output stays within them"))
    if "experts" in model:
        lines.insert(4, ("experts", f"{model['experts']['used']} of {model['experts']['all']} per token"))
    if "strategies" in about:
        lines.append(("strategies", ", ".join(about["strategies"])))
        lines += [("", text) for text in _drafts(about["draft_auto"], about["without_files"])]
        lines.append(("recoveries", ", ".join(about["recoveries"])))
    return _aligned(lines)


def _drafts(auto: str | None, missing: dict[str, str]) -> Iterator[str]:
    """Yield the draft model that ``auto`` chooses, and which strategies need a file."""
    if auto is not None:
        yield f"draft auto is {auto}"
    for reason in dict.fromkeys(missing.values()):
        words = [word for word, each in missing.items() if each == reason]
        yield f"{', '.join(words)} need{'s' * (len(words) == 1)} --draft: {reason}"


def _cache(memory: JsonObject) -> str:
    per_token, many = size(memory["kv_per_token"]), size(memory["kv_per_1000_tokens"])
    return f"{memory['kv_type']}, {per_token} per token, {many} for 1,000 tokens"


def _without(missing: list[int]) -> str:
    return f"no tokens for the bytes {' '.join(f'{byte:02X}' for byte in missing)}: text is encoded without them"


def _quality(measured: dict[str, float]) -> str:
    return f"on the demo: perplexity {measured['perplexity']:.4f}, KL divergence from f32 {measured['kl']:.1e} nats"


def _unpacked(memory: JsonObject) -> str:
    return f"unpacked for prompts up to {size(memory['unpacked_weights'])} more, where there is room (--unpacked-bytes)"


def _plan(plan: JsonObject) -> list[tuple[str, str]]:
    lines = [("split", f"{plan['split']}, {plan['pages']:,} KV pages, context {plan['context']:,} tokens")]
    for device in plan["devices"]:
        first, end = device["layers"]
        parts = ", ".join(f"{name} {size(device[name])}" for name in ("weights", "unpacked", "states", "pages", "work"))
        total = f"{size(device['total'])} of {size(device['free'])}"
        lines.append((f"  {device['device']}", f"layers {first} to {end - 1}: {total}; {parts}"))
    return lines


def _device(device: JsonObject) -> str:
    if device["kind"] == "cpu":
        return f"cpu, {device['processor']}, {device['threads']} threads, {' '.join(device['simd'])}"
    target = device.get("target", device["architecture"])
    rules = "" if target == device["architecture"] else f" under the rules of {target}"
    return f"{device['kind']}, {device['processor']}, {size(device['memory'])}, {device['architecture']}{rules}"


def _windows(windows: dict[str, int]) -> str:
    return ", ".join(f"{n} see all tokens" if last == "all" else f"{n} see the last {last}" for last, n in windows.items())


def _mix(kind: str, part: dict[str, int], kernels: dict[str, str]) -> str:
    return f"{kind:<8} {part['tensors']:>5} tensors {size(part['bytes']):>10}   {kernels[kind]}"


def _parsed(parsers: dict[str, str | None], template: JsonObject) -> str:
    """Return the formats of reasoning and tool calls, of a template that has some."""
    kinds = (("reasoning", "reasoning", "thinking"), ("tool calls", "tool", "tools"))
    parts = [
        f"{kind} parsed as {parsers[role]}" if parsers[role] else f"no parser for its {kind} (left as text)"
        for kind, role, ability in kinds
        if parsers[role] or template.get(ability)
    ]
    return ", ".join(parts) or "no reasoning or tool calls"


def _template(template: JsonObject | None) -> str:
    if template is None:
        return "none"
    if "error" in template:
        return f"unusable: {template['error']}"
    abilities = [label for name, label in _ABILITIES.items() if template[name]]
    return ", ".join(abilities) or "messages only"
