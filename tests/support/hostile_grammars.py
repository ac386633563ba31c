"""Random grammars, schemas and patterns that nobody would write: graphs, wide, repeated, ambiguous, and nonsense."""

import random

LETTERS = ["a", "b", "[a-z]", "[^a]", ".", r"\w", r"\d", "(?s:.)", "é", r"\p{L}", "x{3}", "(ab|cd)", "[[:alpha:]]"]
COUNTS = ["?", "*", "+", "{2}", "{0,3}", "{1,40}", "{200}", "{0,5000}", "{3,}"]
SIZES = [1, 2, 5, 20, 100, 700, 5000]


def hostile_fields(seed):
    """Return the fields of a request with one random constraint."""
    rng = random.Random(seed)
    kind = rng.choice(["lark", "lark", "regex", "regex", "grammar", "schema", "schema", "schema"])
    if kind == "schema":
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema_of(rng)}}}
    return {kind: {"lark": lark_of, "regex": regex_of, "grammar": gbnf_of}[kind](rng)}


def regex_of(rng):
    parts = [_regex(rng, rng.choice([0, 1, 2, 4, 12])) for _ in range(rng.choice([1, 1, 2, 3]))]
    parts += rng.choice([[], [], ["a{9999999}"], ["((a{30}){30}){30}"]])
    return "".join(part * rng.choice([1, 1, 1, *SIZES]) for part in parts)[:200_000]


def _regex(rng, depth):
    if not depth:
        return rng.choice(LETTERS) + (rng.choice(COUNTS) if rng.random() < 0.4 else "")
    inner = [_regex(rng, depth - 1 if rng.random() < 0.8 else 0) for _ in range(rng.choice([1, 1, 2]))]
    return rng.choice(["({})", "(?:{})", "({}|a)", "{}b"]).format(rng.choice(["", "|"]).join(inner)) + rng.choice(
        ["", *COUNTS]
    )


def lark_of(rng):
    n = rng.choice(SIZES[:-1])
    rules = [f"start: {_body(rng, n)}", *(f"r{i}: {_body(rng, n, i)}" for i in range(n))]
    rules += ["T0: /[a-z]+/", 'T1: "x" | "yy"', f"T2: /{_regex(rng, 2)}/", "T3: T0 & ~T1", f"lazy[lazy]: /{_regex(rng, 1)}/"]
    if rng.random() < 0.3:
        rules.append("%ignore /[ \\t\\n]+/")
    if rng.random() < 0.1:
        rules.append(rng.choice(["(((", '"', "/", "r0:", "%json {", "\n" * 5000, "::=" * 300]))
    return "\n".join(rules)


def _body(rng, n, place=0):
    """A body whose references lead anywhere, or mostly on to the next rule."""

    def part():
        refs = [f"r{rng.randrange(n)}", f"r{min(place + 1, n - 1)}"] * 3
        one = rng.choice(['"a"', "/[a-z]/", "/.|b/", "T0", "T1", "T2", "T3", "lazy", '""', "start", *refs])
        return one + (rng.choice(["?", "*", "+", "{2,5}", "{90}"]) if rng.random() < 0.25 else "")

    ways = [" ".join(part() for _ in range(rng.choice([1, 1, 2, 3, 8]))) for _ in range(rng.choice([1, 1, 2, 3, 30]))]
    return " | ".join(ways if rng.random() < 0.9 else [f"({way})+" for way in ways])


def gbnf_of(rng):
    n = rng.choice(SIZES[:-1])
    rules = [f"root ::= {_gbnf_body(rng, n)}", *(f"r{i} ::= {_gbnf_body(rng, n, i)}" for i in range(n))]
    filler = rng.choice(["", "#\n", "\n", '# a comment "[\n']) * rng.choice([0, 1, 100, 3000])
    return filler + "\n".join(rules)


def _gbnf_body(rng, n, place=0):
    ends = ['"a"', "[a-z]", "[^x]", f"r{rng.randrange(n)}", f"r{min(place + 1, n - 1)}", f"r{min(place + 1, n - 1)}"]
    ways = [
        " ".join(rng.choice(ends) + rng.choice(["", "", "?", "*", "+", "{2,4}"]) for _ in range(rng.randint(1, 4)))
        for _ in range(rng.choice([1, 1, 2, 5]))
    ]
    return " | ".join(ways)


def schema_of(rng):
    n = rng.choice(SIZES[:-1])
    shared = {f"d{i}": _schema(rng, rng.choice([0, 1, 2]), n, i) for i in range(n)}
    return {**_schema(rng, 3, n, 0), "$defs": shared}


def _schema(rng, depth, n, place):
    def reference():
        target = rng.choice([rng.randrange(n), min(place + 1, n - 1), min(place + 1, n - 1)])
        return {"$ref": rng.choice([f"#/$defs/d{target}"] * 9 + ["#"])}

    def inner():
        return _schema(rng, depth - 1, n, place) if depth and rng.random() < 0.6 else reference()

    kind = rng.randrange(14)
    wide = rng.choice([1, 2, 3, 40] if depth else [1, 2])
    keys = [f"k{i}" for i in range(wide)]
    if kind == 0:
        return {"type": "object", "properties": {key: inner() for key in keys}, "required": rng.sample(keys, len(keys) // 2)}
    if kind == 1:
        return {"type": "array", "items": inner(), "minItems": rng.choice([0, 1, 5000]), "maxItems": rng.choice([5, 10**9])}
    if kind in (2, 3, 4):
        return {rng.choice(["anyOf", "oneOf", "allOf"]): [inner() for _ in range(wide)]}
    if kind == 5:
        return {"type": "object", "patternProperties": {f"^{key}{_regex(rng, 1)}": inner() for key in keys}}
    if kind == 6:
        return {"type": "string", "pattern": _regex(rng, 3) * rng.choice([1, 1, 30, 700])}
    if kind == 7:
        return {"type": "string", "minLength": rng.choice([0, 3, 10**6]), "maxLength": rng.choice([3, 10**7])}
    if kind == 8:
        return {"enum": [rng.choice([i, str(i) * rng.choice([1, 50]), None, [i], {"a": i}]) for i in range(wide * 30)]}
    if kind == 9:
        return {
            "type": rng.choice(["integer", "number"]),
            "multipleOf": rng.choice([1, 7, 0.01, 1e-9, 99991, 10**8]),
            "minimum": -5,
        }
    if kind == 10:
        return {"type": "string", "format": rng.choice(["date", "date-time", "uuid", "ipv6", "email", "nonsense"])}
    if kind == 11:
        return {"prefixItems": [inner() for _ in range(wide)], "items": rng.choice([False, True])}
    if kind == 12:
        return {"type": "object", "additionalProperties": inner(), "properties": {key: {"type": "string"} for key in keys}}
    return reference()
