"""Rows of OpenAI's fields: chat completions, completions and Responses."""

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.serve.limits import MAX_LOGPROBS
from dflash.serve.request_fields.kinds import flag, whole
from dflash.serve.request_fields.row import (
    CHAT,
    COMPLETIONS,
    OPENAI,
    RESPONSES,
    TEXTS,
    done,
    ignored,
    is_one_of,
    is_only,
    refused,
)

_USER = {"role": "user", "content": "Hi"}
_CALLS = {"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {}}}}
_TOOL = {"type": "function", "name": "a", "parameters": {"type": "object", "properties": {}}}
_C, _T, _R = (CHAT,), (COMPLETIONS,), (RESPONSES,)

ROWS = (
    # chat completions and completions
    done("messages", _C, "see [blocks](request-blocks.md)", [_USER, _USER]),
    done("prompt", _T, "text, token ids, or an array of those", [1, 2]),
    done("max_tokens", _C, "output tokens, at most the rest of the context", 5, whole(1, MAX_TOKENS)),
    done("max_completion_tokens", _C, "newer name of max_tokens, which it overrides", 5, whole(1, MAX_TOKENS)),
    done(
        "max_tokens",
        _T,
        "the same; 16 by default. 0, with `echo` or `prompt_logprobs`, reads the prompt only",
        5,
        whole(0, MAX_TOKENS),
    ),
    done("tools", _C, "functions; other kinds are skipped", [_CALLS]),
    done("tool_choice", _C, "`auto`, `required`, `none` or a function", "none", tools=[_CALLS]),
    done("parallel_tool_calls", (CHAT, RESPONSES), "false ends the output after its first call", False, flag(True)),
    done("logprobs", _C, "log-probabilities of all tokens, reasoning included", True, flag()),
    done("top_logprobs", _C, "likeliest tokens at each position", 2, whole(0, MAX_LOGPROBS), logprobs=True),
    done("logprobs", _T, "the same, with this number of likeliest tokens", 2, whole(0, MAX_LOGPROBS)),
    done("echo", _T, "the prompt before the output, with its log-probabilities if `logprobs` is set", True, flag()),
    ignored("best_of", _T, "must equal `n`: choices are not ranked", 2, n=2),
    refused("suffix", _T, "filling in the middle is not possible with these models", "end"),
    done("stream_options", TEXTS, "`include_usage`, `continuous_usage_stats`", {"include_usage": True}, stream=True),
    done("reasoning_effort", _C, "`none` sets `enable_thinking` to false; other values change nothing", "none"),
    done("reasoning", _C, "`effort`, `enabled`, `exclude`, `max_tokens`, as in OpenRouter's API", {"enabled": False}),
    refused("functions", _C, "use tools", [{"name": "a"}]),
    refused("function_call", _C, "use tool_choice", "auto"),
    refused("audio", _C, "this model writes text only", {"voice": "a", "format": "wav"}),
    refused("modalities", _C, "this model writes text only", ["text", "audio"], is_only("text")),
    ignored(
        "prediction",
        _C,
        "a prediction does not change the output; the strategy `lookup` drafts from the prompt",
        {"content": "a"},
    ),
    ignored("web_search_options", _C, "searches run at OpenAI only", {}),
    ignored("verbosity", _C, "advice for OpenAI's models", "low"),
    ignored("moderation", (CHAT, RESPONSES), "nothing is moderated here", {"mode": "auto"}),
    ignored("store", _C, "chat completions are not stored", True),
    ignored("metadata", (CHAT, COMPLETIONS), "only `session_id` and `user_id` in it name the conversation", {"a": "b"}),
    ignored("service_tier", OPENAI, "there is one tier", "flex"),
    ignored("prompt_cache_retention", OPENAI, "the cache keeps what fits", "24h"),
    ignored("prompt_cache_options", OPENAI, "the cache needs no marks", {"mode": "auto"}),
    ignored("safety_identifier", TEXTS, "nothing is moderated here", "me"),
    ignored("client_metadata", OPENAI, "for the client's own statistics", {"a": "b"}),
    # Responses
    done("input", _R, "see [blocks](request-blocks.md)", "Hello"),
    done("instructions", _R, "a system message before the input", "Be brief."),
    done("max_output_tokens", _R, "output tokens, at most the rest of the context", 5, whole(1, MAX_TOKENS)),
    done("tools", _R, "functions, custom tools, namespaces of them; other kinds are skipped", [_TOOL]),
    done("tool_choice", _R, "`auto`, `required`, `none`, a tool, or `allowed_tools`", "none", tools=[_TOOL]),
    done("text", _R, "`format`; `verbosity` is ignored", {"format": {"type": "json_object"}}),
    done("reasoning", _R, "`effort: none` and `context`; the rest is repeated", {"effort": "none"}),
    done("previous_response_id", _R, "continue a stored response", "resp_1"),
    done("store", _R, "keep the response for an hour", False, flag(True)),
    done("metadata", _R, "repeated; `session_id` and `user_id` name the conversation", {"a": "b"}),
    done("safety_identifier", _R, "repeated", "me"),
    done("include", _R, "`reasoning.encrypted_content`", ["reasoning.encrypted_content"]),
    done("truncation", _R, "`auto` drops the oldest turns of a conversation beyond the context", "auto"),
    done("max_tool_calls", _R, "repeated; it counts tools that run at OpenAI", 3, whole(1, MAX_TOKENS)),
    ignored("top_logprobs", _R, "for log-probabilities in `include`, which are refused", 2),
    refused("logprobs", _R, "use /v1/chat/completions with logprobs", True),
    refused("background", _R, "send stream instead, or wait for the response", True),
    refused("conversation", _R, "use previous_response_id", "conv_1"),
    refused("prompt", _R, "prompts are not kept on this server; send instructions and input", {"id": "p"}),
    refused("image", _R, "this model writes text only", {"size": "auto"}),
    refused("modalities", _R, "this model writes text only", ["audio"], is_only("text")),
    ignored("background_options", _R, "no response runs in the background", {}),
    ignored("context_management", _R, "clients compact their conversations themselves", [{"type": "compaction"}]),
    ignored("access_programs", _R, "for OpenAI's own models", []),
    ignored(
        "stream_options",
        _R,
        "streams have no padding, and usage is always in the last event",
        {"include_obfuscation": False},
    ),
    refused("echo", _R, "the prompt is not repeated in this API", True),
    refused("best_of", (CHAT, RESPONSES), "use n: choices are not ranked", 2, is_one_of(1)),
)
