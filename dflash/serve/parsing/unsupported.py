"""Request fields of other servers that would change the output and are not supported yet."""

from dflash.serve.parsing.fields import Fields

_FIELDS = {
    "continue_final_message": "the answer always starts a new turn",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "this model writes text only",
    "ignore_eos": "a sequence ends at an end token",
    "stop_token_ids": "use stop",
    "include_stop_str_in_output": "stop strings are left out",
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias",
    "prompt_logprobs": "log-probabilities of the prompt are not available",
    "truncate_prompt_tokens": "prompts are never cut",
    "use_beam_search": "there is no beam search",
    "mirostat": "there is no such sampler",
    "dry_multiplier": "there is no such sampler",
    "xtc_probability": "there is no such sampler",
    "dynatemp_range": "there is no such sampler",
}
"""Fields of vLLM and llama.cpp, with the reason or the alternative."""


def refuse_unsupported(fields: Fields) -> None:
    """Refuse a body that sets one of these fields; null, false, 0 and empty values are the default and pass.

    Raises
    ------
    FieldError
        If such a field is set; the message gives the alternative. Other unknown fields are ignored.
    """
    for name, reason in _FIELDS.items():
        if fields.values.get(name):
            raise fields.error(name, f"is not supported: {reason}")
