"""Run in a process of its own: records every regular expression of dflash, then tries each on texts that grow.

Prints JSON: ``recorded``, the places that have used one, and ``slow``, those that take more than linear time.
"""

import ast
import importlib
import json
import re
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import dflash

ROOT = Path(dflash.__file__).parent
METHODS = ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
SHORT, LONG = 1000, 4000
"""Characters of the texts: a quadratic one takes 0.1 s and more for the long one, a linear one 1 ms."""

SLOW = 0.05
"""CPU seconds that no text of `LONG` characters takes in linear time."""

BOUNDED = ("cli/", "decode/prefix_cache/", "decode/registry/", "model/gguf/", "model/loading/", "model/draft/", "kernels/")
"""Folders whose expressions see only names, of at most 200 characters from a client."""

ORIGINAL = {method: getattr(re, method) for method in METHODS}
recorded = {}


def bounded(where):
    return where.startswith(BOUNDED)


def place(frame):
    path = Path(frame.f_code.co_filename)
    return f"{path.relative_to(ROOT)}:{frame.f_lineno}" if ROOT in path.parents else None


def watch():
    """Replace the functions of `re` by ones that record who uses them."""
    for method in METHODS:

        def wrapped(pattern, *arguments, _method=method, **settings):
            found = place(sys._getframe(1))
            if found is not None:
                flags = [each for each in (*arguments, *settings.values()) if isinstance(each, re.RegexFlag)]
                recorded.setdefault(found, set()).add(ORIGINAL["compile"](pattern, *flags))
            return ORIGINAL[_method](pattern, *arguments, **settings)

        setattr(re, method, wrapped)


def pumps(source):
    """Short texts from the characters of an expression, which repeated may make it try many ways."""
    letters = [*dict.fromkeys(re.sub(r"\\[nrtsSdDwWbBAZ]|[^\W\d_]{3,}", " ", source)[:400])]
    signs = [*dict.fromkeys([" ", "\n", "a", "0", '"', "\\", "<", *(sign for sign in letters if not sign.isalnum())])][:12]
    words = [*dict.fromkeys(re.findall(r"[\w</>%=-]{2,}", source)[:6])]
    return [*signs, *words, *(one + other for one in signs[:5] for other in signs[:5] if one != other)]


def methods_of(where):
    """Methods of an expression that its file uses; all if that can't be seen."""
    path, line = where.rsplit(":", 1)
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = {
        part.attr if isinstance(part, ast.Attribute) else part.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node.lineno <= int(line) <= node.end_lineno
        for target in node.targets
        for part in ast.walk(target)
        if isinstance(part, ast.Name | ast.Attribute)
    } - {"self"}
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in METHODS
        if getattr(node.value, "id", getattr(node.value, "attr", None)) in names
    }
    return used if used <= {"match", "fullmatch"} and used else {"match", "fullmatch", "search", "sub"}


def cpu_seconds(expression, methods, text):
    began = time.process_time()
    for method in methods:
        if method == "sub":
            expression.sub(lambda found: found[0], text)
        else:
            getattr(expression, method)(text)
    return time.process_time() - began


def is_slow(expression, methods):
    """Return a text for which an expression takes more than linear time, if one of the tried ones does."""
    binary = isinstance(expression.pattern, bytes)
    source = expression.pattern.decode("latin-1") if binary else expression.pattern
    for pump in pumps(source):
        for head, tail in (("", "\x00"), ('"', "")):
            texts = [head + (pump * n)[:n] + tail for n in (SHORT, LONG)]
            short, long = (text.encode() if binary else text for text in texts)
            if all(
                cpu_seconds(expression, methods, long) > max(SLOW, 8 * cpu_seconds(expression, methods, short))
                for _ in range(3)
            ):
                return f"{head!r} + {pump!r} * n + {tail!r}"
    return None


def use_all():
    """Import all modules and make what makes expressions."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if not {"kernels", "cuda", "ray", "__main__"} & set(parts):
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
    from demo_text import DATA, demo_tokenizer

    from dflash.errors import RequestError
    from dflash.generation.grammar.build import grammars
    from dflash.generation.grammar.params import GrammarParams
    from dflash.generation.parsers import OutputFormat
    from dflash.generation.recovery.announcements import PHRASES
    from dflash.model.config import Config
    from dflash.model.gguf.file import GGUFFile
    from dflash.model.loading.hub import resolve
    from dflash.model.network.ops import Buffer, EmbedOp
    from dflash.model.split.shards import Shard, ShardWeights
    from dflash.model.text.chat_template import ChatTemplate
    from dflash.model.text.template_guards import limit_widths
    from dflash.model.text.tokenizer import Tokenizer
    from dflash.model.weights import Weights

    tools = [{"type": "function", "function": {"name": "read", "parameters": {"properties": {"path": {"type": "string"}}}}}]
    called = (
        "<tool_call>\n<function=read>\n<parameter=path>\nx\n</parameter>\n</function>\n</tool_call>",
        '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>',
        '[TOOL_CALLS][{"name": "read", "arguments": {}}, ',
        "[TOOL_CALLS]read[ARGS]{}",
        '{"name": "read", "parameters": {}}',
    )
    families = sorted((DATA / "templates" / "families").glob("*.jinja"))
    for path in (DATA / "demo" / "chat_template.jinja", DATA / "templates" / "json_calls.jinja", *families):
        template = ChatTemplate(path.read_text(encoding="utf-8"), tokens={})
        for text in called:
            parser = OutputFormat.of(template, tools).parser("", thinking=True)
            parser.push("a</think>")
            parser.push(text)
        with suppress(RequestError):  # the demo's vocabulary has not the tokens of all families
            grammars(GrammarParams(tool_choice="required"), [([1], False)], demo_tokenizer(), template, tools)
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), "<s>", "</s>"]
    spaced = {"model": "llama", "tokens": tokens, "scores": [0.0] * 258, "token_type": [6] * 256 + [3, 3]}
    spaced |= {"bos_token_id": 256, "eos_token_id": 257}
    Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in spaced.items()}).spelled_tokens().marked("<s>")
    PHRASES.announce("I will read the file.")
    limit_widths("")
    str(EmbedOp("blk.0.token_embd.weight", Buffer("stream", (4,))))
    with closing(GGUFFile.open(resolve("demo"))) as file:
        config = Config.from_gguf(file.metadata, file.tensors)
        ShardWeights(Weights(file, config), config, Shard(0, 2)).matrix("blk.0.attn_norm.weight")
    with suppress(RequestError):
        grammars(GrammarParams(lark="start: nothing"), [([1], False)], demo_tokenizer())


if __name__ == "__main__":
    watch()
    use_all()
    places = list(recorded)
    slow = {where: [is_slow(each, methods_of(where)) for each in recorded[where]] for where in places if not bounded(where)}
    json.dump({"recorded": places, "slow": {where: texts for where, texts in slow.items() if any(texts)}}, sys.stdout)
