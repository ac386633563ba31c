"""Fields of chat completions about reasoning, under the names of several servers."""

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.generation.messages.fields import Fields, shown
from dflash.serve.request_fields.row import CHAT
from dflash.serve.request_fields.table import read


def read_reasoning(fields: Fields) -> tuple[bool | None, Fields, bool]:
    """Read ``reasoning_effort``, ``reasoning`` (OpenRouter), ``thinking`` (DeepSeek) and ``include_reasoning`` (vLLM).

    Returns: true if the model shall think, False if not, None if the body does not say.
    Returns: the same fields, with the budget of ``reasoning.max_tokens`` as ``thinking_token_budget``.
    Returns: true if the answer shall hold the reasoning.
    """
    thinks, included = None, read(fields, CHAT, "include_reasoning")
    reasoning, thinking = fields.object("reasoning"), fields.object("thinking")
    if thinking is not None:
        kind = thinking.text("type", required=True)
        if kind not in ("enabled", "disabled", "adaptive", "auto"):
            raise thinking.error("type", f"must be enabled, disabled, adaptive or auto, got {shown(kind)}")
        thinks = {"enabled": True, "disabled": False}.get(kind)
        fields = fields.filled({"thinking_token_budget": thinking.integer("budget_tokens", 0, MAX_TOKENS)})
    if reasoning is not None:
        if reasoning.any("enabled") is not None:
            thinks = reasoning.flag("enabled")
        thinks = False if reasoning.any("effort") == "none" else thinks
        included = included and not reasoning.flag("exclude")
        fields = fields.filled({"thinking_token_budget": reasoning.integer("max_tokens", 0, MAX_TOKENS)})
    return False if fields.any("reasoning_effort") == "none" else thinks, fields, included
