"""Fields that requests of several APIs share: sampling, ends of the output, streaming, strategy."""

from typing import Any

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.decode.sampling.params import Sampling
from dflash.errors import RequestError
from dflash.generation.messages.fields import Fields, shown
from dflash.json_types import JsonObject
from dflash.serve.limits import MAX_BIASES, MAX_STOP_LENGTH, MAX_STOPS
from dflash.serve.request_fields.row import TEXTS
from dflash.serve.request_fields.table import read
from dflash.serve.requests import Options, Truncation
from dflash.serve.strategy_choice import parse_decoding

_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)


def parse_options(
    fields: Fields, api: str, max_tokens: int | None, *, logprobs: int | None = None, stops: str = "stop"
) -> Options:
    """Read the settings of a request; those whose names differ between APIs are parameters."""
    least = fields.integer("min_tokens", 0, MAX_TOKENS, 0)
    if max_tokens is not None and least > max_tokens:
        raise fields.error("min_tokens", f"must be at most {fields.name('max_tokens')} ({max_tokens}), got {least}")
    stream = read(fields, api, "stream")
    stream_options = fields.object("stream_options") if api in TEXTS else None
    if stream_options and not stream:
        raise fields.error("stream_options", "needs stream to be true")
    settings: dict[str, Any] = {
        "logprobs": logprobs,
        **(_output_options(fields, api, stream=stream) if api in TEXTS else {}),
    }
    if stream_options:
        settings["include_usage"] = stream_options.flag("include_usage")
        settings["continuous_usage"] = stream_options.flag("continuous_usage_stats")
    return Options(
        model=read(fields, api, "model"),
        sampling=_sampling(fields, api),
        max_tokens=max_tokens,
        stop=_stops(fields, stops),
        stream=stream,
        decoding=parse_decoding(fields),
        ignore_eos=read(fields, api, "ignore_eos"),
        stop_token_ids=read(fields, api, "stop_token_ids"),
        skip_special=read(fields, api, "skip_special_tokens"),
        truncation=_truncation(fields, api),
        cache_salt=read(fields, api, "cache_salt"),
        use_prefix_cache=read(fields, api, "cache_prompt"),
        priority=read(fields, api, "priority"),
        **settings,
    )


def _output_options(fields: Fields, api: str, *, stream: bool) -> JsonObject:
    """Read the fields of chat completions and completions that choose what an answer has."""
    prompt_logprobs = read(fields, api, "prompt_logprobs")
    if prompt_logprobs is not None and stream:
        raise fields.error("prompt_logprobs", "can't be combined with stream; send the request without stream")
    extension = fields.object("dflash")
    return {
        "steps": extension is not None and extension.flag("steps"),
        "step_tokens": extension is not None and extension.flag("tokens"),
        "n": read(fields, api, "n"),
        "prompt_logprobs": prompt_logprobs,
        "token_ids": read(fields, api, "return_token_ids"),
        "tokens_as_ids": read(fields, api, "return_tokens_as_token_ids"),
    }


def _truncation(fields: Fields, api: str) -> Truncation | None:
    n_tokens = fields.integer("truncate_prompt_tokens", -1, MAX_TOKENS)
    keep_end = read(fields, api, "truncation_side") == "left"
    if n_tokens == 0:
        raise fields.error("truncate_prompt_tokens", "must be -1 or a whole number of at least 1, got 0")
    return None if n_tokens is None else Truncation(None if n_tokens < 0 else n_tokens, keep_end)


def _sampling(fields: Fields, api: str) -> Sampling:
    """Read the sampling parameters; those that are absent are off."""
    settings = {name: read(fields, api, name) for name in _SAMPLING}
    try:
        return Sampling(**settings, logit_bias=_logit_bias(fields))
    except RequestError as error:
        name, _, reason = str(error).partition(": ")
        raise fields.error(name, reason) from error


def _logit_bias(fields: Fields) -> dict[int, float]:
    bias = fields.object("logit_bias")
    if bias is None:
        return {}
    if len(bias.values) > MAX_BIASES:
        raise fields.error("logit_bias", f"holds {len(bias.values)} tokens, at most {MAX_BIASES} are allowed")
    for key in bias.values:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise fields.error("logit_bias", f"keys must be token ids, got {shown(key)}")
    return {int(key): bias.number(key, -100, 100, 0.0) for key in bias.values}


def _stops(fields: Fields, name: str) -> tuple[str, ...]:
    """Read stop strings: one, or an array of them."""
    stops = fields.any(name)
    if stops is None:
        return ()
    stops = [stops] if isinstance(stops, str) else stops
    if isinstance(stops, list) and len(stops) > MAX_STOPS:
        raise fields.error(name, f"holds {len(stops)} strings, at most {MAX_STOPS} are allowed")
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise fields.error(name, f"must be a string or an array of strings, none of them empty, got {shown(stops)}")
    longest = max(map(len, stops), default=0)
    if longest > MAX_STOP_LENGTH:
        raise fields.error(name, f"holds a string of {longest} characters, at most {MAX_STOP_LENGTH} are allowed")
    return tuple(stops)
