"""Ways to use a model, and what is left of it afterwards without the collector of cycles."""

import gc
from contextlib import contextmanager
from weakref import ref

import pytest

import dflash
from dflash.errors import DFlashError, PoolExhausted, Unsupported

TEXT = "a = [1, 2, 3]\nb = [1, 2, 3]\nc ="
TOOL = {"type": "function", "function": {"name": "count", "parameters": {"type": "object", "properties": {}}}}


def nothing(lm):
    pass


def texts(lm):
    messages = [{"role": "user", "content": "Count the lines."}]
    yield lm.generate([TEXT, messages, TEXT], max_tokens=8, temperature=0.8, seed=1, logprobs=2)
    yield lm.generate(messages, max_tokens=8, tools=[TOOL], recover="empty,stall,loop,min:4", repetition_penalty=1.2)


def strategies(lm):
    for name in ("lookup", "mtp:2", "mtp-tree:6", "dflash:4", "ddtree:8", "first(lookup, mtp)", "adaptive"):
        yield lm.generate(TEXT, max_tokens=12, strategy=name)


def a_stream_that_is_broken_off(lm):
    for count in (0, 1, 5):
        stream = lm.stream(TEXT, max_tokens=50, strategy="lookup")
        for _ in range(count):
            next(stream)
        stream.close()


def a_stream_that_is_forgotten(lm):
    next(lm.stream(TEXT, max_tokens=400))


def numbers(lm):
    yield lm.logits(TEXT), lm.perplexity(TEXT), lm.info()
    with lm.profile() as seconds:
        yield lm.generate(TEXT, max_tokens=2), seconds


def texts_that_fail(lm):
    forward = lm.model.forward

    def fail(*arguments, **settings):
        raise PoolExhausted("nothing is left")

    lm.model.forward = fail
    with_no_error_kept(lambda: lm.generate([TEXT, "a"], strategy="mtp"))
    lm.model.forward = forward
    del forward, lm.model.forward


def what_can_not_be_prepared(lm):
    def refuse(model):
        raise Unsupported(f"{model} is read backwards")

    drafter = dflash.MTP("none.gguf")
    object.__setattr__(drafter, "prepare", refuse)
    with_no_error_kept(lambda: lm.generate(TEXT, strategy=drafter))


def with_no_error_kept(function):
    try:
        function()
    except DFlashError:
        return
    pytest.fail("it did not raise")


USES = (
    nothing,
    texts,
    strategies,
    a_stream_that_is_broken_off,
    a_stream_that_is_forgotten,
    numbers,
    texts_that_fail,
    what_can_not_be_prepared,
)


@contextmanager
def no_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def left(use, **settings):
    """Names of what is still there after a model was used, closed and let go of; what was written outlives it."""
    lm = dflash.load("demo", context=512, sequences=2, **settings)
    results = list(use(lm) or ())
    model, engine = lm.model, lm._engine_thread.engine
    parts = {"model": model, "pools": model.pools, "weights": model.weights, "engine": engine, "tokenizer": lm.tokenizer}
    parts |= {f"companion {key!r}": value for key, value in model.attachments.items()}
    parts = {name: ref(part) for name, part in parts.items()}
    lm.close()
    del lm, model, engine
    assert bool(results) == (use in (texts, strategies, numbers))
    return [name for name, part in parts.items() if part() is not None]
