"""The table of all known blocks and items, and its use on one."""

from collections.abc import Mapping

from dflash.generation.messages import anthropic, openai
from dflash.generation.messages.fields import Fields, shown
from dflash.generation.messages.row import ASSISTANT, ITEM, RESULT, BlockRow, Treatment

ROWS: tuple[BlockRow, ...] = (*anthropic.ROWS, *openai.ROWS)

TABLE: Mapping[tuple[str, str, str], BlockRow] = {(row.api, place, row.kind): row for row in ROWS for place in row.places}
"""Rows by API, place and type."""

_GOES_ON = (ASSISTANT, RESULT, ITEM)
"""Places where an unknown type is no error: a program or another server wrote it, and it would come with every request."""


def treatment_of(block: Fields, api: str, place: str) -> Treatment:
    """Return the treatment of a block by its type and its place.

    An unknown type is left out among items and written as a note in answers and results, so that no conversation ends at it.
    """
    kind = block.text("type", required=True)
    row = TABLE.get((api, place, kind))
    if row is not None and row.treatment is Treatment.REFUSED:
        why = "" if place == ITEM else ", only text"
        raise block.error("type", f"{kind!r} can't be read here{why}: {row.text}")
    if row is not None:
        return row.treatment
    if place not in _GOES_ON:
        known = ", ".join(known for of, where, known in TABLE if (of, where) == (api, place))
        raise block.error("type", f"{shown(kind)} is not known in a message of the {place}; known are {known}")
    return Treatment.LEFT_OUT if place == ITEM else Treatment.TEXT
