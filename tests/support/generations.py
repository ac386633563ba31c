"""Generations built from steps, without a model."""

from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Plain
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Step
from dflash.generation.result import Generation
from dflash.generation.timings import Timings, Usage
from dflash.generation.token_texts import TokenText

TIMINGS = Timings(queued=0.0, first_token=0.05, decode=0.1, prompt_rate=900.0, decode_rate=80.0)


def generation(steps, text="2 < 3", vocabulary=None, **extra):
    tokens = [token for step in steps for token in step.tokens]
    pieces = [text if number == 0 else "" for number in range(len(steps))]
    usage = Usage(7, len(tokens))
    if vocabulary is None:
        ids = {token for step in steps for token in (*step.tokens, *step.draft.tokens.tolist())}
        vocabulary = {token: TokenText(text.encode() if token in tokens[:1] else b"") for token in ids}
    settings = ("stop", 3, Sampling(), Plain(), usage, TIMINGS)
    return Generation([1] * 7, tokens, text, *settings, steps, pieces, vocabulary, **extra)


PREFILL = Step([], prefilled=6, forward=0.01)
TREE = Draft([1, 2, 9, 8], [-1, 0, 0, 2])
"""1 then 2, or 1 then 9 then 8."""
DRAFTED = [
    PREFILL,
    Step([1, 2, 3], drafted=4, accepted=2, forward=0.02, draft=TREE),
    Step([4], drafted=4, forward=0.02, draft=Draft([5, 6, 7, 8])),
]
