"""Reading of event streams of completions."""


def first_text(lines):
    """Read until the first event with text; the sequence runs then.

    `lines` is the iterator of the response. The caller keeps it: httpx closes the connection when it is collected.
    """
    return next(line for line in lines if '"text":"' in line and '"text":""' not in line)
