"""Reasoning between ``<think>`` and ``</think>``, as in Qwen3 and later models."""

from dflash.generation.parsers.registry import register


@register("reasoning", "qwen3")
class ThinkTags:
    """Reasoning in think tags at the start of the completion. The prompt may end with the opening tag."""

    opening, closing = "<think>", "</think>"

    @staticmethod
    def matches(source: str) -> bool:
        """Return True if the source of a chat template writes these tags."""
        return "<think>" in source and "</think>" in source
