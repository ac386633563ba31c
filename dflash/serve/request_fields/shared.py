"""Rows of fields that several APIs share: sampling, length, constraints, the chat template, and fields of this server."""

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.serve.limits import MAX_CHOICES, MAX_SALT, MAX_STOP_IDS
from dflash.serve.request_fields.kinds import choice, flag, ids, number, text, whole
from dflash.serve.request_fields.row import (
    ALL,
    CHAT,
    CHATS,
    COMPLETIONS,
    MESSAGES,
    OPENAI,
    RESPONSES,
    TEXTS,
    done,
    ignored,
    is_one_of,
    mapped,
    refused,
    unlimited,
)

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}

ROWS = (
    done("model", ALL, "any name is served; with `--strict-model` those of `--model-name`", "m", text()),
    done("stream", ALL, "events instead of one body", True, flag()),
    done("temperature", ALL, "0 is greedy, the default", 0.7, number(0, 100, 0.0)),
    done("top_k", ALL, "the likeliest tokens to keep; 0 and -1 are off", 5, whole(-1, MAX_TOKENS, 0)),
    done("top_p", ALL, "the likeliest tokens that together have this probability", 0.9, number(0, 1, 1.0)),
    done("min_p", ALL, "tokens with this share of the largest probability", 0.1, number(0, 1, 0.0)),
    done("repetition_penalty", ALL, "for tokens of prompt and output; 1 is off", 1.1, number(0, 100, 1.0)),
    done("presence_penalty", ALL, "for tokens of the output", 0.5, number(-2, 2, 0.0)),
    done("frequency_penalty", ALL, "for each occurrence in the output", 0.5, number(-2, 2, 0.0)),
    done("logit_bias", ALL, "token ids to numbers from -100 to 100", {"5": 1.5}),
    done("seed", ALL, "the same seed gives the same output", 7, whole(-(2**63), 2**64 - 1, none=-1)),
    done("n", TEXTS, "choices of each prompt", 2, whole(1, MAX_CHOICES, 1)),
    ignored("n", (RESPONSES,), "this API has one answer", 2),
    refused("n", (MESSAGES,), "this API has one answer; send the request several times", 2, is_one_of(1)),
    done("stop", OPENAI, "text or texts before which the output ends", ["END"]),
    done("min_tokens", ALL, "output tokens before an end", 3),
    done("ignore_eos", ALL, "continue after end tokens, up to the largest length", True, flag()),
    done("stop_token_ids", ALL, "tokens that end the output; they have no text", [5, 6], ids(MAX_STOP_IDS)),
    done("skip_special_tokens", ALL, "leave control tokens out of the text", False, flag(True)),
    done("truncate_prompt_tokens", ALL, "shorten the prompt to this number of tokens; -1 is what fits the context", 9),
    done(
        "truncation_side",
        ALL,
        "`left` keeps the end of the prompt, the default; `right` its beginning",
        "right",
        choice("left", "right"),
        truncate_prompt_tokens=9,
    ),
    done("cache_salt", ALL, "requests with different texts share no prefix cache", "secret", text(MAX_SALT)),
    mapped("extra_key", ALL, "cache_salt", "SGLang's name", "secret"),
    done("cache_prompt", ALL, "use the prefix cache", False, flag(True)),
    # constraints
    done("response_format", TEXTS, "`text`, `json_object` (also with `schema`), `json_schema`", _FORMAT),
    refused(
        "response_format", (RESPONSES,), "use text.format", _FORMAT, lambda value: not value or value == {"type": "text"}
    ),
    refused(
        "response_format",
        (MESSAGES,),
        "use output_config.format",
        _FORMAT,
        lambda value: not value or value == {"type": "text"},
    ),
    done("json_schema", OPENAI, "a JSON schema of the output, as in llama.cpp", _SCHEMA),
    done("regex", OPENAI, "see [structured output](structured-output.md)", "a+"),
    done("lark", OPENAI, "see [structured output](structured-output.md)", 'start: "a"'),
    done("grammar", OPENAI, "Lark, or llama.cpp's GBNF", 'root ::= "a"'),
    mapped("ebnf", OPENAI, "grammar", "SGLang's name; its syntax is GBNF", 'root ::= "a"'),
    done("structured_outputs", OPENAI, "vLLM's object of constraints", {"regex": "a+"}),
    done("guided_json", OPENAI, "older names of the same", _SCHEMA),
    done("guided_json_object", OPENAI, "older name of the same", True),
    done("guided_regex", OPENAI, "older name of the same", "a+"),
    done("guided_choice", OPENAI, "older name of the same", ["a", "b"]),
    done("guided_grammar", OPENAI, "older name of the same", 'root ::= "a"'),
    ignored("guided_decoding_backend", OPENAI, "there is one implementation", "xgrammar"),
    refused("guided_whitespace_pattern", OPENAI, "use guided_regex or lark", "[ ]?"),
    *(
        refused(name, (MESSAGES,), "use output_config.format, or strict tools", example)
        for name, example in {
            "json_schema": _SCHEMA,
            "regex": "a+",
            "lark": 'start: "a"',
            "grammar": 'root ::= "a"',
            "ebnf": 'root ::= "a"',
            "structured_outputs": {"regex": "a+"},
            "guided_json": _SCHEMA,
            "guided_regex": "a+",
            "guided_choice": ["a", "b"],
            "guided_grammar": 'root ::= "a"',
        }.items()
    ),
    # chat template
    done("chat_template_kwargs", CHATS, "variables of the chat template; they take precedence", {"enable_thinking": True}),
    done("enable_thinking", CHATS, "variable of the chat template", True),
    done("preserve_thinking", CHATS, "variable of the chat template: keep the thinking of all turns", True),
    mapped("think", CHATS, "enable_thinking", "Ollama's name; `low`, `medium`, `high` are true", "low", convert=bool),
    done("documents", CHATS, "passed to the chat template", [{"title": "a", "text": "b"}]),
    refused("chat_template", ALL, "start the server with --chat-template-file", "{{ messages[0].content }}"),
    refused("template", ALL, "start the server with --chat-template-file", "{{ .Prompt }}"),
    # fields of this server
    done("strategy", ALL, "a [strategy](architecture.md) by name; never changes the output", "lookup"),
    done("recover", ALL, "[recoveries](recoveries.md) by name", ["loop"]),
    done("thinking_token_budget", ALL, "see [recoveries](recoveries.md); -1 is none", 100),
    *(
        mapped(name, ALL, "thinking_token_budget", why, 100)
        for name, why in {
            "thinking_budget": "name of other servers of Qwen models",
            "thinking_budget_tokens": "llama.cpp's name",
            "reasoning_budget_tokens": "llama.cpp's name",
        }.items()
    ),
    done("repetition_detection", ALL, "see [recoveries](recoveries.md)", {"max_pattern_size": 20, "min_count": 3}),
    done("session_id", ALL, "name of the conversation, a hint for the [prefix cache](prefix-cache.md)", "s"),
    done("prompt_cache_key", ALL, "the same", "s"),
    done("user", ALL, "the same, if nothing else names the conversation", "me"),
    refused("extra_body", ALL, "its fields belong at the top of the body", {"top_k": 4}),
    refused("options", ALL, "its fields belong at the top of the body, under OpenAI's names", {"num_predict": 5}),
    refused("do_sample", ALL, "use temperature; 0 is greedy", True, is_one_of()),
    mapped("max_new_tokens", TEXTS, "max_tokens", "SGLang's and Transformers' name", 5),
    mapped("n_predict", TEXTS, "max_tokens", "llama.cpp's name; -1 is the rest of the context", 5, convert=unlimited),
    mapped("num_predict", TEXTS, "max_tokens", "Ollama's name; -1 is the rest of the context", 5, convert=unlimited),
    mapped("max_tokens", (RESPONSES,), "max_output_tokens", "name of the other APIs", 5),
    mapped("max_completion_tokens", (RESPONSES,), "max_output_tokens", "name of chat completions", 5),
    mapped("max_completion_tokens", (COMPLETIONS, MESSAGES), "max_tokens", "name of chat completions", 5),
    mapped("max_output_tokens", (CHAT, COMPLETIONS, MESSAGES), "max_tokens", "name of Responses", 5),
)
