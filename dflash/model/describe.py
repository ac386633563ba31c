"""Describe a model file, and the memory that running it takes, from its header alone."""

import math
import platform
from collections import Counter
from importlib.metadata import version
from typing import Any

from dflash.errors import TemplateError
from dflash.kernels.formats import BLOCKS, FORMATS
from dflash.kernels.gpu import device as gpu
from dflash.kernels.ragged import PAGE, PENDING
from dflash.model.config import Config
from dflash.model.draft.vocabulary import n_common
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.keys import Keys
from dflash.model.split.names import device_number
from dflash.model.state.budget import Need, n_cores, unpacked_size
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.vocabulary import UNUSED, TokenizerVocabulary

_NORMALIZER = "NFC, as the original tokenizer; llama.cpp does not normalize"
_GIVEN = {"messages", "tools", "documents", "add_generation_prompt"}


KV_QUALITY = {
    "f32": {"perplexity": 14.7953, "kl": 0.0},
    "f16": {"perplexity": 14.7954, "kl": 2.4e-8},
    "q8_0": {"perplexity": 14.7962, "kl": 8.6e-6},
    "f16/q8_0": {"perplexity": 14.7955, "kl": 1.2e-6},
    "q8_0/f16": {"perplexity": 14.7964, "kl": 7.4e-6},
}
"""Perplexity of the demo with a type of the KV cache, and the mean KL divergence from f32 in nats, on 24,576 tokens that it
was not trained on; measured by ``benchmarks/kv_types.py`` on a CPU."""


def overview(
    file: GGUFFile, *, kv: str = "f16", pending: int = PENDING, threads: int | None = None, device: str = "cpu"
) -> dict[str, Any]:
    """Describe a model without reading a weight.

    threads: threads that the kernels would use; by default every core that this process may run on.
    Returns: ``model``, ``quantization``, ``memory``, ``tokenizer``, ``template``, ``device``, ``kernels``: JSON values only,
        sizes in bytes. ``limit`` is there for a device of known bandwidth.
    """
    place = describe(device, threads)
    config = Config.from_gguf(file.metadata, file.tensors, pending=pending)
    vocabulary = TokenizerVocabulary.from_gguf(file.metadata)
    about = {
        "model": _model(file, config) | _draft_vocabularies(config.n_vocab, place["kind"]),
        "quantization": _quantization(file),
        "memory": _memory(file, config, kv) | ({"kv_on_the_demo": KV_QUALITY[kv]} if kv in KV_QUALITY else {}),
        "tokenizer": _tokenizer(vocabulary),
        "template": _template(file, vocabulary),
        "device": place,
        "kernels": {
            kind: _kernel(kind, place["kind"]) for kind in sorted({tensor.type for tensor in file.tensors.values()})
        },
    }
    return about | {"limit": _limit(file, config, place["bandwidth"])} if place.get("bandwidth") else about


def describe(device: str, threads: int | None = None) -> dict[str, Any]:
    """Describe the device of the kernels: a processor with threads and SIMD, or a GPU with memory and architecture."""
    number = device_number(device)
    trouble = None if device == "cpu" else gpu.trouble() if number is None else gpu.trouble(number)
    if device != "cpu" and trouble is None:
        with gpu.on(number):
            return gpu.description()
    about = _host(threads)
    return about | {"no_gpu": trouble} if trouble else about


def _host(threads: int | None) -> dict[str, Any]:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    simd = [name for name in ("avx512f", "avx2", "fma", "f16c", "neon") if features.get(name)]
    return {
        "kind": "cpu",
        "processor": _processor() or llvm.get_host_cpu_name(),
        "threads": threads or n_cores(),
        "simd": simd,
        "compiler": " ".join(["numba", version("numba"), "llvmlite", version("llvmlite"), *platform.libc_ver()]).strip(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:  # noqa: PTH123
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        return ""


def _model(file: GGUFFile, config: Config) -> dict[str, Any]:
    n_recurrent = sum(config.recurrent)
    model = {
        "name": Keys(file.metadata, "general").text("name", file.path.stem),
        "files": [str(path) for path in file.parts],
        "architecture": config.architecture,
        "parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        "layers": {"attention": config.n_layers - n_recurrent, "recurrent": n_recurrent, "mtp": config.n_mtp},
        "width": config.width,
        "context": config.context,
    }
    if config.layers:
        windows = Counter(layer.window for layer in config.layers)
        model["windows"] = {str(window or "all"): n for window, n in sorted(windows.items())}
    if config.experts:
        model["experts"] = {"all": config.experts, "used": config.experts_used}
    return model


def _draft_vocabularies(n_vocab: int, device: str) -> dict[str, Any]:
    """Return the sizes of the draft vocabularies of block drafts and MTP heads on a GPU, if there are several."""
    common = list(n_common(n_vocab)) if device == "cuda" else []
    return {"draft_vocab_steps": {"common": common, "all": n_vocab}} if common else {}


def _quantization(file: GGUFFile) -> dict[str, dict[str, int]]:
    counts, sizes = Counter[str](), Counter[str]()
    for tensor in file.tensors.values():
        counts[tensor.type] += 1
        sizes[tensor.type] += tensor.n_bytes
    return {kind: {"tensors": counts[kind], "bytes": size} for kind, size in sizes.most_common()}


def _memory(file: GGUFFile, config: Config, kv: str) -> dict[str, Any]:
    need = Need.of(config, kv)
    return {
        "weights": sum(tensor.n_bytes for tensor in file.tensors.values()),
        "unpacked_weights": unpacked_size(config, file.tensors.values()),
        "kv_type": kv,
        "kv_per_token": need.page // PAGE,
        "kv_per_1000_tokens": 1000 * need.page // PAGE,
        "state_per_sequence": need.state,
        "pending_rows": config.pending,
        "pending_per_sequence": need.pending,
    }


def _limit(file: GGUFFile, config: Config, bandwidth: int) -> dict[str, float]:
    """Return the weights' bytes that a decoded token reads, and the tokens a second at the device's bandwidth."""
    rows_only = {"per_layer_token_embd.weight"} | ({"token_embd.weight"} if "output.weight" in file.tensors else set())
    mtp = tuple(f"blk.{i}." for i in range(config.n_layers, config.n_layers + config.n_mtp))
    used = config.experts_used / config.experts if config.experts else 1.0
    n_bytes = sum(
        tensor.n_bytes * (used if "_exps" in name else 1.0)
        for name, tensor in file.tensors.items()
        if name not in rows_only and not name.startswith(mtp)
    )
    return {"bytes_per_token": round(n_bytes), "bandwidth": bandwidth, "tokens_per_second": round(bandwidth / n_bytes, 1)}


def _tokenizer(vocabulary: TokenizerVocabulary) -> dict[str, Any]:
    rule = vocabulary.piece_rule
    return {
        "model": "BPE of characters" if rule is None else "byte-level BPE",
        "pre": vocabulary.pre,
        "tokens": len(vocabulary.types.rstrip(bytes([UNUSED]))),
        "merges": len(vocabulary.merges),
        "normalizer": _NORMALIZER if rule is not None and rule.nfc else "no normalization",
        "end": None if vocabulary.eos is None else vocabulary.texts[vocabulary.eos],
        "adds_bos": vocabulary.add_bos,
        "missing_bytes": vocabulary.missing_bytes,
    }


def _template(file: GGUFFile, vocabulary: TokenizerVocabulary) -> dict[str, Any] | None:
    source = Keys(file.metadata, "tokenizer").text("chat_template", None)
    if source is None:
        return None
    ids = {"bos_token": vocabulary.bos, "eos_token": vocabulary.eos, "pad_token": vocabulary.pad}
    tokens = {name: vocabulary.texts[token] for name, token in ids.items() if token is not None}
    try:
        abilities = ChatTemplate(source, tokens=tokens).abilities
    except TemplateError as error:
        return {"error": str(error)}
    return {
        "system": abilities.system,
        "tools": abilities.tools,
        "parallel_calls": abilities.parallel_calls,
        "thinking": abilities.thinking,
        "settings": sorted(name for name in abilities.variables - _GIVEN if f"set {name} " not in source),
    }


def _kernel(kind: str, device: str) -> str:
    if device == "cuda":
        return "cuda: multiplied as stored" if kind in FORMATS else "cuda: held as F16"
    if kind in FORMATS:
        return "cpu: multiplied as stored"
    return "cpu: unpacked by the gguf package when used (slow)" if kind in BLOCKS else "none"
