"""Perplexity of a model whose prompts are read with int8 products, in all layers or in one kind, beside float16.

python benchmarks/prefill_types.py [--model demo] [--tokens 2048] [--texts 12]

Needs a Hopper GPU. Texts and divergence as in ``benchmarks/kv_types.py``; p is that of float16.
"""

import argparse
import re

import numpy as np
from kv_types import compared, log_softmax, texts

import dflash
from dflash.kernels.linear import cuda_prefill

KINDS = {
    "all": "",
    "inputs of attention and delta rule": r"attn_(q|k|v|qkv|gate)\.|ssm_(in|alpha|beta)",
    "their outputs": r"attn_output|ssm_out",
    "gate and up": r"ffn_(gate|up)\.",
    "down": r"ffn_down\.",
}


def load(arguments, kinds):
    """Load the model with int8 products for weights whose names match a pattern; None is float16 only."""
    original = cuda_prefill.PrefillLinear

    def chosen(x, weights, outs, *, int8, **settings):
        return original(x, weights, outs, int8=int8 and all(re.search(kinds, w.name) for w in weights), **settings)

    settings = {"device": "cuda", "context": arguments.tokens, "sequences": 1, "kv": "f16"}
    cuda_prefill.PrefillLinear = original if kinds is None else chosen
    try:
        return dflash.load(arguments.model, prefill="f16" if kinds is None else "int8", **settings)
    finally:
        cuda_prefill.PrefillLinear = original


def main():
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--texts", type=int, default=12)
    arguments = parser.parse_args()
    truths, ids_of = [], None
    for name, kinds in {"float16": None, **KINDS}.items():
        with load(arguments, kinds) as lm:
            ids_of = ids_of or texts(lm, arguments.tokens, arguments.texts)
            mine = [log_softmax(lm.logits(ids)) for ids in ids_of]
        if not truths:
            truths = mine
            print(f"{len(ids_of)} texts of {arguments.tokens} tokens\n")
            print("| int8 products | perplexity | mean KL, nats | 99 % | same first choice |")
            print("| --- | ---: | ---: | ---: | ---: |")
        loss, far, same = map(np.concatenate, zip(*map(compared, mine, truths, ids_of), strict=True))
        print(
            f"| {'none' if kinds is None else name} | {np.exp(np.mean(loss)):.4f} | {np.mean(far):.2e} | "
            f"{np.quantile(far, 0.99):.2e} | {np.mean(same):.2%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
