"""Limits of one grammar, checked before anything is built from it.

Sizes are checked in the process of the engine. Time, memory and stack are limits of the process that compiles a grammar
first; see `dflash.generation.grammar.checking`.
"""

MAX_CHARACTERS = 1 << 18
"""Characters of a schema as JSON, a regular expression or a Lark grammar (262,144); real schemas have up to about 60,000."""

MAX_DEPTH = 64
"""Levels of arrays and objects in a schema; those of real tools have up to about 20."""

MAX_GRAMMAR_PARTS = 1 << 14
"""Names, signs and texts of a grammar, or schemas within a schema (16,384); real ones have up to about 3,000."""

MAX_CHAIN = 2048
"""Rules of a grammar, or parts of a schema, that lead into each other in a row; those of a circle all count. Grammars of
whole programming languages have a few hundred."""

MAX_PATTERN = 8192
"""Characters of one regular expression; the longest for email addresses has 6,400. The library takes quadratic time."""

MAX_QUANTIFIERS = 2048
"""Quantifiers (``?``, ``*``, ``+``, ``{n}``) of one pattern or rule, for which the library takes quadratic time."""

MAX_WRITTEN = 100_000
"""Characters of a pattern whose counted repetitions are written out, as the library does while tokens are generated."""

MAX_KEY_PATTERNS = 64
"""Entries of `patternProperties`: each is intersected with all others."""

MAX_MULTIPLE = 1_000_000
"""Largest `multipleOf`: the library builds a state for each remainder."""

COMPILE_FUEL = 1_000_000
"""Steps of work on regular expressions before the first token: about 20 ms, by llguidance's own measure."""

MAX_SYMBOLS = 500_000
"""Symbols of a compiled grammar; compiling that many takes about 0.2 s."""

MAX_STATES = 50_000
"""States of the lexer of one grammar, 1 to 2 kB each."""

STEP_FUEL = 200_000
"""Steps of work on regular expressions for one mask: about 14 ms. A request that needs more ends with an error."""

STEP_ITEMS = 12_000
"""Parser items for one mask; 300 optional properties need 10,000. A request that needs more ends with an error."""

FREE_MASK_SECONDS = 0.005
"""CPU seconds that each mask has free; free text in a vocabulary of 248,320 tokens takes up to 3 ms."""

MASK_SECONDS = 0.06
"""CPU seconds of a request's masks and moves beyond the free ones; then the request ends with an error."""

SHARED_MASK_SECONDS = 0.1
"""CPU seconds that the masks of all requests may take together beyond the free ones. While they have taken more, a request
ends with an error if it has a part of `LEAST_MASK_SECONDS` in it."""

SHARED_MASK_REFILL = 0.1
"""Part of `SHARED_MASK_SECONDS` that comes back: seconds in each second."""

LEAST_MASK_SECONDS = 0.01
"""CPU seconds of its masks and moves beyond the free ones that a request may take whatever others do."""

CHECK_SECONDS = 0.25
"""CPU seconds of the checking process for one grammar; those of real tools take up to 0.02 s."""

CHECK_BYTES = 256 << 20
"""Bytes that checking one grammar may take beyond the vocabulary, which has 170 MB for 248,320 tokens."""

CHECK_STACK = 2 << 20
"""Bytes of stack for checking one grammar: the library recurses into nested and into chained rules."""

COMPILE_STACK = 32 << 20
"""Bytes of stack for compiling a grammar that was checked: far more, since the two processes need not be equal."""

CHECK_WALL_SECONDS = 30.0
"""Seconds for checking one grammar on a machine that has no time for the checking process."""

START_SECONDS = 120.0
"""Seconds for the checking process to start and to build the vocabulary, which takes 1.5 s for 248,320 tokens."""

MAX_BUILT = 1 << 20
"""Characters of all schemas of a grammar, with the definitions that each of them needs (1,048,576)."""

MAX_GENERATED_PARTS = 1 << 17
"""Names, signs and texts of a grammar that was made from schemas (131,072); a parameter takes about 30."""

MAX_PARAMETERS = 4096
"""Parameters of a function, those of each form of its schema counted; real ones have up to about 60."""
