"""The demo's tokenizer with the tokens that mark calls of Llama 3 and Mistral, and chat templates of these families."""

from functools import cache

from demo_text import DATA, demo_metadata

from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

TOKENS = {"<|fim_prefix|>": "[TOOL_CALLS]", "<|fim_middle|>": "[ARGS]", "<|fim_suffix|>": "<|python_tag|>"}


@cache
def family_tokenizer():
    """The demo's, with control tokens of these families in place of others."""
    metadata = demo_metadata()
    texts, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    for old, new in TOKENS.items():
        token = texts.index(old)
        texts[token], types[token] = new, 3
    return Tokenizer.from_gguf(metadata)


@cache
def family_template(family):
    source = (DATA / "templates" / "families" / f"{family}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, tokens={"bos_token": "<s>", "eos_token": "</s>"})
