"""Rules of JSON values, each written once; their size is known before they are made."""

import json

from dflash.errors import RequestError
from dflash.generation.grammar.lark import json_rule
from dflash.generation.grammar.limits import MAX_BUILT
from dflash.generation.grammar.schema.plain import PlainSchemas, Schema


class JSONRules:
    """Collects the rules of JSON values of one grammar."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        self._names: dict[str, str] = {}
        self._known: dict[tuple[int, str], str] = {}
        self._n_characters = 0

    def add(self, name: str, plain: PlainSchemas, schema: Schema) -> str:
        """Return the name of the rule for values of a reduced schema."""
        key = id(plain), json.dumps(schema)
        if key in self._known:
            return self._known[key]
        self._n_characters += plain.size(schema)
        if self._n_characters > MAX_BUILT:
            size = f"have more than {MAX_BUILT} characters"
            raise RequestError(f"{name}: the schemas, with the definitions that each parameter refers to, {size}")
        text = json_rule(plain.with_shared(schema))
        if text not in self._names:
            self._names[text] = f"j{len(self._names)}"
            self.rules.append(f"{self._names[text]}: {text}")
        self._known[key] = self._names[text]
        return self._known[key]
