"""Names of drafters and recoveries. Each class registers itself in its own file; this package imports none of them."""

from dflash.decode.registry.strategies import (
    MAX_NAME,
    MAX_NESTING,
    MAX_PARTS,
    NameCall,
    Named,
    check_draft_options,
    check_no_draft_options,
    name,
    names,
    parse,
    parts,
    register,
    words,
    words_of,
)

__all__ = [
    "MAX_NAME",
    "MAX_NESTING",
    "MAX_PARTS",
    "NameCall",
    "Named",
    "check_draft_options",
    "check_no_draft_options",
    "name",
    "names",
    "parse",
    "parts",
    "register",
    "words",
    "words_of",
]
