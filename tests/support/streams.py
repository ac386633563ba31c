"""Reading of event streams of completions."""


def first_text(stream):
    """Read a stream until its first event with text; the sequence runs then."""
    return next(line for line in stream.iter_lines() if '"text":"' in line and '"text":""' not in line)
