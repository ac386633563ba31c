"""Bodies of ``/v1/completions``."""

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.serve.limits import MAX_CHOICES, MAX_SEQUENCES
from dflash.serve.parsing.constraints import parse_grammar
from dflash.serve.parsing.fields import Fields, shown
from dflash.serve.parsing.options import parse_options
from dflash.serve.parsing.unsupported import refuse_unsupported
from dflash.serve.requests import CompletionRequest

MAX_LOGPROBS = 20
"""Top tokens per position, as in OpenAI's API."""

DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of a completion request that gives none, as in OpenAI's API."""


def parse_completion(body: object) -> CompletionRequest:
    """Read a completion body.

    Raises
    ------
    FieldError
        If a field is missing, of the wrong kind or out of range.
    """
    fields = Fields(body)
    refuse_unsupported(fields)
    logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)
    echo = fields.flag("echo")
    if echo and logprobs is not None:
        raise fields.error("echo", "log-probabilities of the prompt are not available; drop echo or logprobs")
    if fields.any("suffix"):
        raise fields.error("suffix", "filling in the middle is not supported")
    n = fields.integer("n", 1, MAX_CHOICES, 1)
    if fields.integer("best_of", 1, MAX_CHOICES, n) != n:
        raise fields.error("best_of", f"must equal n ({n}): choices are not ranked")
    max_tokens = fields.integer("max_tokens", 1, MAX_TOKENS, DEFAULT_COMPLETION_TOKENS)
    prompts = _prompts(fields)
    if n * len(prompts) > MAX_SEQUENCES:
        raise fields.error(
            "n", f"{n} choices of {len(prompts)} prompts are {n * len(prompts)}, at most {MAX_SEQUENCES} are allowed"
        )
    return CompletionRequest(parse_options(fields, max_tokens, logprobs), prompts, parse_grammar(fields), echo)


def _prompts(fields: Fields) -> tuple[str | list[int], ...]:
    prompt = fields.any("prompt", required=True)
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt, list) and prompt:
        if _are_ids(prompt):
            return (prompt,)
        if len(prompt) > MAX_CHOICES:
            raise fields.error("prompt", f"holds {len(prompt)} prompts, at most {MAX_CHOICES} are allowed")
        if all(isinstance(part, str) or _are_ids(part) for part in prompt):
            return tuple(prompt)
    raise fields.error("prompt", f"must be a string, an array of token ids, or an array of those, got {shown(prompt)}")


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and 0 <= item < 2**31 for item in value)
