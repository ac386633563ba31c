"""Tensors of a draft model: canonical names (llama.cpp's mainline GGUF format), shapes, and names in other formats."""

import re
from collections.abc import Collection, Mapping

from dflash.errors import FormatError, Unsupported
from dflash.model.draft.config import DraftConfig
from dflash.model.gguf.header import quoted
from dflash.model.gguf.tensor_check import listed, trimmed

Shapes = dict[str, tuple[int, ...]]

FORKS = ("dflash-draft", "qwen35-dflash-draft")
"""Architectures of GGUF files written by forks, before the mainline format; many hold a wrong rotation base."""

_FORKED = (
    (r"dflash[._]fc\.weight", "fc.weight"),
    (r"(?:dflash[._])?hidden_norm\.weight", "enc.output_norm.weight"),
    (r"blk\.(\d+)\.post_attention_norm\.weight", r"blk.\1.ffn_norm.weight"),
)


_TORCH = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "layers.#.input_layernorm.weight": "blk.#.attn_norm.weight",
    "layers.#.hidden_norm.weight": "blk.#.hidden_norm.weight",
    "layers.#.post_attention_layernorm.weight": "blk.#.ffn_norm.weight",
    "layers.#.self_attn.o_proj.weight": "blk.#.attn_output.weight",
    **{f"layers.#.self_attn.{part}_proj.weight": f"blk.#.attn_{part}.weight" for part in "qkv"},
    **{f"layers.#.self_attn.{part}_norm.weight": f"blk.#.attn_{part}_norm.weight" for part in "qk"},
    **{f"layers.#.mlp.{part}_proj.weight": f"blk.#.ffn_{part}.weight" for part in ("gate", "up", "down")},
    "layers.#.attention_conv.base_kernel": "blk.#.attn_conv_base",
    "layers.#.attention_conv.kernel_projection.weight": "blk.#.attn_conv_proj.weight",
    "layers.#.mlp_conv.base_kernel": "blk.#.ffn_conv_base",
    "layers.#.mlp_conv.kernel_projection.weight": "blk.#.ffn_conv_proj.weight",
    **{f"candidate_selector.{part}_codebook.weight": f"selector_{part}.weight" for part in ("predecessor", "successor")},
    **{f"candidate_selector.{part}_codebook": f"selector_{part}.weight" for part in ("predecessor", "successor")},
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    **{f"markov_head.markov_w{i}.weight": f"markov_w{i}.weight" for i in (1, 2)},
    **{f"confidence_head.proj.{part}": f"conf_proj.{part}" for part in ("weight", "bias")},
}
"""Canonical names by those in safetensors files; ``#`` is the number of a layer."""

_PUBLISHED = {canonical: name for name, canonical in _TORCH.items()}

OPTIONAL = ("token_embd.weight", "output.weight", "d2t", "conf_proj.bias")
_NOT_NEEDED = ("t2d",)
"""Tensors that are ignored: ``t2d`` is the inverse of ``d2t``."""


def canonical(name: str, *, torch: bool) -> str:
    """Return the canonical name of a tensor; `torch` says that the file is a safetensors file."""
    if torch:
        return _renamed(re.sub(r"^midlayer\.", "layers.0.", name.removeprefix("model.")), _TORCH)
    for pattern, meant in _FORKED:
        match = re.fullmatch(pattern, name)
        if match:
            return match.expand(meant)
    return name


def published(name: str) -> str:
    """Return the name in a safetensors file of a tensor with this canonical name."""
    return _renamed(name, _PUBLISHED)


def _renamed(name: str, table: Mapping[str, str]) -> str:
    """Look a name up without the number of its layer; names that are not in the table stay as they are."""
    number = re.search(r"(?<=\.)\d+(?=\.)", name)
    layer = number[0] if number else ""
    key = name[: number.start()] + "#" + name[number.end() :] if number else name
    return table[key].replace("#", layer) if key in table else name


def kind_of(names: Collection[str]) -> str:
    """Return the kind of draft that has tensors of these canonical names."""
    if "selector_hidden.weight" in names:
        return "dflash2"
    return "dspark" if "markov_w1.weight" in names else "dflash"


def expected(config: DraftConfig, n_vocab: int, n_head: int) -> Shapes:
    """Return every tensor that a draft model needs or may have.

    n_head: rows of the LM head; fewer than `n_vocab` if there is a ``d2t``.
    """
    h, q, kv, rank = config.width, config.heads * config.head_size, config.kv_heads * config.head_size, config.selector_rank
    outside: Shapes = {
        "fc.weight": (h, len(config.target_layer_ids) * h),
        "enc.output_norm.weight": (h,),
        "output_norm.weight": (h,),
        "token_embd.weight": (n_vocab, h),
        "output.weight": (n_head, h),
        "d2t": (n_head,),
    }
    block: Shapes = {
        "attn_norm.weight": (h,),
        "ffn_norm.weight": (h,),
        "attn_q.weight": (q, h),
        "attn_k.weight": (kv, h),
        "attn_v.weight": (kv, h),
        "attn_output.weight": (h, q),
        "attn_q_norm.weight": (config.head_size,),
        "attn_k_norm.weight": (config.head_size,),
        "ffn_gate.weight": (config.ffn, h),
        "ffn_up.weight": (config.ffn, h),
        "ffn_down.weight": (h, config.ffn),
    }
    if config.kind == "dflash2":
        changes = 2 * config.conv_width * (h // config.conv_group)
        for part in ("attn", "ffn"):
            block |= {f"{part}_conv_base": (2, config.conv_width, h), f"{part}_conv_proj.weight": (changes, h)}
        outside |= {f"selector_{side}.weight": (n_vocab, rank) for side in ("predecessor", "successor")}
        outside["selector_hidden.weight"] = (rank, h)
    if config.kind == "dspark":
        rank = config.markov_rank
        outside |= {"markov_w1.weight": (n_vocab, rank), "markov_w2.weight": (n_head, rank)}
        if config.has_confidence:
            outside |= {"conf_proj.weight": (1, h + rank), "conf_proj.bias": (1,)}
    return outside | {f"blk.{i}.{name}": shape for i in range(config.n_layers) for name, shape in block.items()}


def check_tensors(config: DraftConfig, found: Mapping[str, tuple[int, ...]], n_vocab: int) -> None:
    """Check that a file holds every tensor of a draft model in its shape, and no tensor that dflash does not know."""
    n_head = found["d2t"][0] if len(found.get("d2t", ())) == 1 else n_vocab
    if "d2t" in found and "output.weight" not in found:
        raise FormatError("the draft maps tokens of its own by 'd2t', but has no head 'output.weight'")
    want = expected(config, n_vocab, n_head)
    if config.has_confidence and trimmed(found.get("conf_proj.weight", ())) == (config.width,):
        raise Unsupported(
            f"the draft's confidence head 'conf_proj.weight' reads the hidden state alone ({config.width} numbers): "
            f"only one that reads the Markov code of {config.markov_rank} numbers, too, is run"
        )
    match_shapes(found, want, what="draft", optional=OPTIONAL, ignored=_NOT_NEEDED)
    if config.kind == "dflash2" and "d2t" in found:
        raise Unsupported("a DFlash 2 draft with a vocabulary of its own ('d2t') is not run")


def match_shapes(
    found: Mapping[str, tuple[int, ...]],
    want: Mapping[str, tuple[int, ...]],
    *,
    what: str,
    optional: Collection[str],
    ignored: Collection[str],
) -> None:
    """Compare the tensors of a file with those of a model of kind `what`; raises as `check_tensors`."""
    missing = [name for name in want if name not in found and name not in optional]
    if missing:
        raise FormatError(f"the {what} misses {len(missing)} tensors: {listed(missing)}")
    for name, shape in found.items():
        if name in want and trimmed(shape) != trimmed(want[name]):
            raise FormatError(f"tensor {quoted(name)} has shape {shape}, must have {want[name]}")
    unknown = [name for name in found if name not in want and name not in ignored]
    if unknown:
        raise Unsupported(f"the {what} has tensors that dflash does not run: {listed([*map(quoted, unknown)])}")
