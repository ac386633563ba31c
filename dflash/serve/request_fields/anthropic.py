"""Rows of Anthropic's fields."""

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.serve.request_fields.kinds import whole
from dflash.serve.request_fields.row import MESSAGES, done, ignored, mapped, refused

_USER = {"role": "user", "content": "Hi"}
_TOOL = {"name": "a", "input_schema": {"type": "object", "properties": {}}}
_FORMAT = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}
_M = (MESSAGES,)

ROWS = (
    done("messages", _M, "see [blocks](request-blocks.md)", [_USER, {"role": "assistant", "content": "a"}, _USER]),
    done("system", _M, "text or text blocks", "Be brief."),
    done("max_tokens", _M, "required; at most the rest of the context", 6, whole(1, MAX_TOKENS)),
    done("stop_sequences", _M, "texts before which the output ends", ["END"]),
    mapped("stop", _M, "stop_sequences", "OpenAI's name", ["END"]),
    done("tools", _M, "tools with a schema; server tools such as `web_search_20250305` are skipped", [_TOOL]),
    done("tool_choice", _M, "`auto`, `any`, `tool`, `none`; `disable_parallel_tool_use`", {"type": "none"}, tools=[_TOOL]),
    done("thinking", _M, "`enabled` with `budget_tokens`, `adaptive`, `disabled`; absent is off", {"type": "adaptive"}),
    done("output_config", _M, "`format`; `effort` and `task_budget` are ignored", {"format": _FORMAT}),
    done("output_format", _M, "older name of output_config.format", _FORMAT),
    done(
        "context_management",
        _M,
        "`clear_thinking` with `keep: all` keeps the thinking of all turns; other edits are ignored",
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    ),
    done("metadata", _M, "`user_id` and `session_id` name the conversation", {"user_id": "me"}),
    refused(
        "mcp_servers", _M, "offer their tools in tools; the client must run them", [{"type": "url", "url": "a", "name": "b"}]
    ),
    refused("prompt_logprobs", _M, "use /v1/chat/completions", 1),
    refused("logprobs", _M, "use /v1/chat/completions", True),
    refused("top_logprobs", _M, "use /v1/chat/completions", 1),
    refused("echo", _M, "the prompt is not repeated in this API", True),
    ignored("cache_control", _M, "the prefix cache needs no marks", {"type": "ephemeral"}),
    ignored("container", _M, "code runs at Anthropic only", "c"),
    ignored("service_tier", _M, "there is one tier", "auto"),
    ignored("inference_geo", _M, "the model runs here", "us"),
    ignored("speed", _M, "there is one speed", "fast"),
    ignored("betas", _M, "what is known here is always on", ["a-2025-01-01"]),
    ignored("compaction", _M, "clients compact their conversations themselves", {"type": "auto"}),
    *(
        ignored(name, _M, "for Anthropic's own accounts", "a")
        for name in (
            "billing_policy",
            "diagnostics",
            "fallback_credit_token",
            "fallbacks",
            "thread",
            "user_profile_id",
            "workspace_id",
        )
    ),
)
