"""Limits of one grammar, checked before anything runs."""

MAX_CHARACTERS = 1 << 18
"""Characters of a schema as JSON, a regular expression or a Lark grammar (262,144); real schemas have up to about 60,000."""

MAX_DEPTH = 64
"""Levels of arrays and objects in a schema; those of real tools have up to about 20."""

COMPILE_FUEL = 1_000_000
"""Steps of work on regular expressions before the first token: about 20 ms, by llguidance's own measure."""

MAX_SYMBOLS = 500_000
"""Symbols of a compiled grammar; compiling that many takes about 0.2 s."""

MAX_STATES = 50_000
"""States of the lexer of one grammar, 1 to 2 kB each."""

STEP_FUEL = 200_000
"""Steps of work on regular expressions for one mask: about 14 ms. A request that needs more ends with an error."""

STEP_ITEMS = 50_000
"""Parser items for one mask: about 3 ms. A request that needs more ends with an error."""
