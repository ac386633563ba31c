"""Rows of fields of one API that a client sends to another."""

from dflash.serve.request_fields.row import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    TEXTS,
    FieldRow,
    ignored,
    is_one_of,
    mapped,
    refused,
    unlimited,
)

_C, _T, _R, _M = (CHAT,), (COMPLETIONS,), (RESPONSES,), (MESSAGES,)
_TOOL = {"type": "function", "function": {"name": "a"}}
_FORMAT = {"format": {"type": "json_object"}}


def _tokens(name: str, apis: tuple[str, ...], to: str) -> FieldRow:
    return mapped(name, apis, to, "name of another server; -1 is the rest of the context", 5, convert=unlimited)


ROWS = (
    *(_tokens(name, _R, "max_output_tokens") for name in ("max_new_tokens", "n_predict", "num_predict")),
    *(_tokens(name, _M, "max_tokens") for name in ("max_new_tokens", "n_predict", "num_predict")),
    mapped("stop_sequences", (*TEXTS, RESPONSES), "stop", "Anthropic's name", ["END"]),
    mapped("system", _R, "instructions", "Anthropic's name", "Be brief."),
    mapped("instructions", _M, "system", "name of Responses", "Be brief."),
    mapped(
        "reasoning_effort", _R, "reasoning", "name of chat completions", "none", convert=lambda effort: {"effort": effort}
    ),
    refused("n_cmpl", (RESPONSES, MESSAGES), "this API has one answer; send the request several times", 2, is_one_of(1)),
    *(refused(name, _C, "send a message with the role system", "Be brief.") for name in ("system", "instructions")),
    *(refused(name, _T, "put it into the prompt", "Be brief.") for name in ("system", "instructions")),
    *(refused(name, (CHAT, MESSAGES), "use messages", "Hi") for name in ("input", "prompt")),
    refused("messages", _R, "use input", [{"role": "user", "content": "Hi"}]),
    refused("messages", _T, "use /v1/chat/completions", [{"role": "user", "content": "Hi"}]),
    refused("input", _T, "use prompt", "Hi"),
    refused("text", (CHAT, COMPLETIONS), "use response_format; a prompt has the name of its API", _FORMAT),
    refused("text", _M, "use output_config.format", _FORMAT),
    refused("tools", _T, "use /v1/chat/completions", [_TOOL]),
    refused("tool_choice", _T, "use /v1/chat/completions", "required", is_one_of("none", "auto")),
    refused("documents", _T, "put them into the prompt", [{"text": "a"}]),
    refused("top_logprobs", _T, "give their number to logprobs", 2),
    *(
        refused(name, (*TEXTS, RESPONSES), "use response_format, in Responses text.format", _FORMAT)
        for name in ("output_config", "output_format")
    ),
    refused("previous_response_id", (*TEXTS, MESSAGES), "use /v1/responses, or send the whole conversation", "resp_1"),
    refused("truncation", (*TEXTS, MESSAGES), "use truncate_prompt_tokens", "auto", is_one_of("disabled")),
    refused("parallel_tool_calls", _M, "use tool_choice.disable_parallel_tool_use", False, is_one_of(True)),
    refused("reasoning", _M, "use thinking", {"effort": "high"}),
    refused("guided_json_object", _M, "use output_config.format", True),
    ignored("reasoning_effort", _M, "`thinking` decides", "high"),
    *(
        ignored(name, _T, "prompts are not rendered by the chat template", example)
        for name, example in {
            "chat_template_kwargs": {"enable_thinking": False},
            "enable_thinking": False,
            "preserve_thinking": True,
            "think": True,
            "reasoning": {"effort": "high"},
            "reasoning_effort": "high",
        }.items()
    ),
    ignored("parallel_tool_calls", _T, "there are no tools", False),
    ignored("include", (*TEXTS, MESSAGES), "for Responses", ["reasoning.encrypted_content"]),
    ignored("max_tool_calls", (*TEXTS, MESSAGES), "it counts tools that run at OpenAI", 3),
    ignored("context_management", TEXTS, "clients compact their conversations themselves", {}),
    ignored("store", (COMPLETIONS, MESSAGES), "only responses are stored", True),
    ignored("safety_identifier", _M, "nothing is moderated here", "me"),
    ignored("stream_options", _M, "usage is always in the last events", {"include_usage": True}),
)
