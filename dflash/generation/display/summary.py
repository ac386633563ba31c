"""Summary of a generation for terminals."""

from dflash.generation.record import GenerationRecord


def summary(generation: GenerationRecord) -> str:
    """Return one line of token counts and rates, then one line for each intervention and warning."""
    usage, timings = generation.usage, generation.timings
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    rate = f" at {timings.prompt_rate:,.0f}/s" if timings.prompt_rate else ""
    decode_rate = f" at {timings.decode_rate:,.1f}/s" if timings.decode_rate else ""  # one step has none
    parts = [
        f"{usage.prompt_tokens} prompt tokens{cached}{rate}",
        f"{usage.completion_tokens} tokens{decode_rate}",
        f"first after {timings.first_token * 1e3:,.0f} ms",
    ]
    if generation.acceptance is not None:
        parts.append(
            f"{generation.tokens_per_step:.2f} tokens per step, {generation.acceptance:.0%} of draft tokens accepted"
        )
    if generation.draft_vocab_steps:
        parts.append(f"draft vocabulary {draft_vocabulary(generation)}")
    lines = [", ".join([*parts, generation.finish_reason]), *map(str, generation.interventions)]
    return "\n".join([*lines, *(f"warning: {each}" for each in generation.warnings)])


def draft_vocabulary(generation: GenerationRecord) -> str:
    """Return the draft vocabulary sizes with the number of steps of each, in words."""
    return " and ".join(f"{n:,} tokens in {steps:,} steps" for n, steps in generation.draft_vocab_steps.items())
