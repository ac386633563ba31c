"""Time of grammar masks: computing one, applying it to a row of logits, moving past a token. Runs without a GPU.

``python benchmarks/grammar.py [MODEL.gguf]`` takes the tokenizer of a model, the demo's by default. ``--enlarge N`` adds
joined pairs of tokens up to a vocabulary of N, as ``--enlarge 248320`` for the size of Qwen3.5's.
"""

import argparse
import time
from itertools import islice
from pathlib import Path
from statistics import median, quantiles

import numpy as np

import dflash
from dflash.generation.grammar.build import grammars
from dflash.generation.grammar.guidance import GuidanceVocabulary
from dflash.generation.grammar.params import GrammarParams
from dflash.kernels import sample
from dflash.model.gguf.file import GGUFFile
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

DEMO = Path(dflash.__file__).parent / "data" / "demo-Q4_K_M.gguf"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}},
        "count": {"type": "number"},
        "kind": {"enum": ["alpha", "beta", "gamma"]},
        "inner": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]},
    },
    "required": ["name", "tags", "count", "kind", "inner"],
}
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}, "required": ["path"]}
TOOLS = [{"type": "function", "function": {"name": "write_file", "parameters": PARAMETERS}}]
OUTPUTS = {
    "schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        '{"name": "The quick brown fox jumps over the lazy dog", "tags": ["alpha beta", "größe", "x\\ny"], '
        '"count": -12.5e3, "kind": "gamma", "inner": {"a": "Some longer text, with punctuation; and (brackets).", "b": 20}}',
    ),
    "regex": ({"regex": r"([A-Z][a-z]+ ){2,6}[0-9]{4}-[0-9]{2}"}, "The Quick Brown Fox 2024-05"),
    "tool call": (
        {"tool_choice": "required"},
        "<tool_call>\n<function=write_file>\n<parameter=path>\nsrc/page.py\n</parameter>\n<parameter=text>\nclass Page:\n"
        '    def show(self):\n        return "<b>title</b>"\n\n    def hide(self):\n        return None\n</parameter>\n'
        "</function>\n</tool_call>",
    ),
}


class Enlarged:
    """A tokenizer with more tokens, pairs of its own, which it never produces itself."""

    def __init__(self, tokenizer, n):
        self._inner = tokenizer
        known = [tokenizer.token_bytes(token) for token in range(tokenizer.n_tokens)]
        ordinary = [text for token, text in enumerate(known) if text and not tokenizer.is_added(token)]
        own = set(known)
        pairs = (one + other for other in ordinary for one in ordinary[::17])
        extra = islice(dict.fromkeys(text for text in pairs if text not in own), n - len(known))
        self._texts = [*known, *extra]
        self.n_vocab = self.n_tokens = len(self._texts)
        self.eos_ids = tokenizer.eos_ids

    def token_bytes(self, token):
        return self._texts[token]

    def is_added(self, token):
        return token < self._inner.n_tokens and self._inner.is_added(token)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=str(DEMO))
    parser.add_argument("--enlarge", type=int, default=0, metavar="N")
    args = parser.parse_args()
    file = GGUFFile.open(Path(args.model))
    tokenizer = Tokenizer.from_gguf(file.metadata)
    template = ChatTemplate(file.metadata["tokenizer.chat_template"], tokens=tokenizer.special_texts())
    if args.enlarge:
        tokenizer = Enlarged(tokenizer, args.enlarge)
    began = time.perf_counter()
    _ = GuidanceVocabulary.of(tokenizer).inner
    print(f"{tokenizer.n_vocab} tokens, prepared in {time.perf_counter() - began:.2f} s, once for each model")
    print("microseconds of each token: median / 90 % / maximum")
    for name, (fields, text) in OUTPUTS.items():
        tools = TOOLS if "tool_choice" in fields else ()
        began = time.perf_counter()
        (grammar,) = grammars(GrammarParams(**fields), [([1], False)], tokenizer, template, tools)
        compiled = time.perf_counter() - began
        times = measured(grammar, tokenizer.encode(text), tokenizer.n_vocab)
        print(f"{name:10s} {1e3 * compiled:8.1f} ms to compile", *(f"  {what} {shown(us)}" for what, us in times.items()))


def measured(grammar, ids, n_vocab, repeats=5):
    """Return the microseconds of each token for the mask, its application, and the move past the token."""
    row = np.random.default_rng(0).standard_normal(n_vocab, np.float32)
    out, times = np.empty_like(row), {"mask": [], "apply": [], "advance": []}
    for _ in range(repeats):
        matcher = grammar.start()
        for token in ids:
            began = time.perf_counter()
            words = matcher.mask()
            masked = time.perf_counter()
            sample.mask_row(row, words, out=out)
            applied = time.perf_counter()
            if not matcher.advance(token):
                raise SystemExit(f"token {token} is not legal")
            matcher.forced()
            moved = time.perf_counter()
            for what, seconds in zip(times, (masked - began, applied - masked, moved - applied), strict=True):
                times[what].append(1e6 * seconds)
    return times


def shown(us):
    return f"{median(us):.0f} / {quantiles(us, n=10)[-1]:.0f} / {max(us):.0f}"


if __name__ == "__main__":
    main()
