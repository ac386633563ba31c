"""The table of all known request fields, and its use on a body."""

from collections.abc import Mapping
from typing import Any

from dflash.generation.messages.fields import Fields
from dflash.serve.request_fields import anthropic, elsewhere, llama_cpp, openai, shared, vllm
from dflash.serve.request_fields.row import ALL, FieldRow, Outcome

ROWS: tuple[FieldRow, ...] = (
    *openai.ROWS,
    *anthropic.ROWS,
    *shared.ROWS,
    *vllm.ROWS,
    *llama_cpp.ROWS,
    *elsewhere.ROWS,
)
"""All rows, by the server that brought the field up."""

TABLE: Mapping[str, Mapping[str, FieldRow]] = {api: {row.name: row for row in ROWS if api in row.apis} for api in ALL}
"""Rows by API and name."""


def known_fields(body: object, api: str) -> Fields:
    """Return the fields of a body, those with other names under their own; errors name what the client wrote.

    Raises FieldError if the body is no object, sets a field that is refused, or one field under two names.
    """
    fields = Fields(body)
    table, found, names = TABLE[api], dict(fields.values), dict[str, str]()
    for name, value in fields.values.items():
        row = table.get(name)
        if row is None or value is None:
            continue
        if row.outcome is Outcome.REFUSED and not row.is_off(value):
            raise fields.error(name, f"is not supported: {row.text}")
        if row.to is not None:
            if found.get(row.to) is not None and found[row.to] != row.convert(value):
                raise fields.error(name, f"is another name of {names.get(row.to, row.to)}; send one of them")
            found[row.to], names[row.to] = row.convert(value), name
    return Fields(found, names=names)


def read(fields: Fields, api: str, name: str) -> Any:
    """Return the value of a plain field by the type, range and default of its row."""
    kind = TABLE[api][name].kind
    assert kind is not None, f"{name} has no plain value"
    return kind.read(fields, name)
