"""Fields that requests of several APIs share: sampling, stop strings, streaming, strategy."""

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.decode.sampling.params import Sampling
from dflash.errors import RequestError
from dflash.serve.limits import MAX_BIASES, MAX_CHOICES, MAX_STOP_LENGTH, MAX_STOPS
from dflash.serve.parsing.fields import Fields, shown
from dflash.serve.requests import Options
from dflash.serve.strategy_choice import parse_decoding


def parse_options(fields: Fields, max_tokens: int | None, logprobs: int | None) -> Options:
    """Read the settings of a request under OpenAI's names; those with several names are parameters.

    Raises
    ------
    FieldError
        If a field is of the wrong kind or out of range.
    """
    least = fields.integer("min_tokens", 0, MAX_TOKENS, 0)
    if max_tokens is not None and least > max_tokens:
        raise fields.error("min_tokens", f"must be at most max_tokens ({max_tokens}), got {least}")
    stream = fields.flag("stream")
    stream_options = fields.object("stream_options")
    if stream_options and not stream:
        raise fields.error("stream_options", "needs stream to be true")
    return Options(
        model=fields.text("model"),
        sampling=parse_sampling(fields),
        n=fields.integer("n", 1, MAX_CHOICES, 1),
        max_tokens=max_tokens,
        stop=parse_stops(fields, "stop"),
        stream=stream,
        include_usage=bool(stream_options and stream_options.flag("include_usage")),
        logprobs=logprobs,
        decoding=parse_decoding(fields),
    )


def parse_sampling(fields: Fields) -> Sampling:
    """Read the sampling parameters; those that are absent are off."""
    settings = {
        "temperature": fields.number("temperature", 0, 100, 0.0),
        "top_k": fields.integer("top_k", -1, MAX_TOKENS, 0),
        "top_p": fields.number("top_p", 0, 1, 1.0),
        "min_p": fields.number("min_p", 0, 1, 0.0),
        "repetition_penalty": fields.number("repetition_penalty", 0, 100, 1.0),
        "presence_penalty": fields.number("presence_penalty", -2, 2, 0.0),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2, 0.0),
        "logit_bias": _logit_bias(fields),
        "seed": fields.integer("seed", -(2**63), 2**64 - 1),
    }
    try:
        return Sampling(**settings)
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


def parse_stops(fields: Fields, name: str) -> tuple[str, ...]:
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
