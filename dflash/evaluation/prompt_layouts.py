"""Published layouts of prompt sets: each turns a record of its file into a row of `dflash.evaluation.prompt_sets`."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from dflash.errors import RequestError
from dflash.json_types import JsonMapping, JsonObject

Record: TypeAlias = JsonMapping
Row: TypeAlias = JsonObject

_UNRESOLVED = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""Beginning of a turn of SPEED-Bench whose text must be fetched from its source."""

_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""JSON Schema's names of the types that function descriptions of BFCL name as Python does."""


class Layout(NamedTuple):
    """A published layout.

    fields: required fields with their types; a file whose first record has them all is recognized.
    row: returns the row of a record, None if the record holds no prompt.
    """

    fields: Mapping[str, type]
    row: Callable[[Record], Row | None]

    def fits(self, record: Record) -> bool:
        """Return True if a record has the required fields."""
        return all(isinstance(record.get(name), kind) for name, kind in self.fields.items())

    def checked_row(self, record: Record) -> Row | None:
        """Return the row of a record; raise a RequestError that names a field which is missing or of another type."""
        for name, kind in self.fields.items():
            if name not in record:
                raise RequestError(f"no field {name}; the record has {', '.join(record) or 'no fields'!s:.80}")
            if not isinstance(record[name], kind):
                raise RequestError(f"{name}: must be {'an array' if kind is list else 'a string'}, got {record[name]!r:.60}")
        return self.row(record)


def tool(function: Record) -> Row:
    """Return a function description of BFCL as a tool of OpenAI's format: JSON types, and no dots in its name."""
    name = function["name"].replace(".", "_")
    return {"type": "function", "function": {**function, "name": name, "parameters": _schema(function["parameters"])}}


def _schema(part: object) -> object:
    if isinstance(part, list):
        return [_schema(each) for each in part]
    if not isinstance(part, dict):
        return part
    found = {key: _schema(value) for key, value in part.items()}
    if isinstance(part.get("type"), str):
        found["type"] = _TYPES.get(part["type"], part["type"])
    return found


def _turns(record: Record) -> Row:
    if any(isinstance(turn, str) and turn.startswith(_UNRESOLVED) for turn in record["turns"]):
        raise RequestError("turns: a text is not in the file; SPEED-Bench's own script fetches it")
    return {"id": record.get("question_id"), "turns": record["turns"], "category": record["category"]}


def _humaneval(record: Record) -> Row:
    return {"id": record["task_id"], "prompt": record["prompt"], "category": "coding"}


def _mbpp(record: Record) -> Row:
    task = record.get("text", record.get("prompt"))
    if not isinstance(task, str):
        raise RequestError(f"no field text or prompt; the record has {', '.join(record)!s:.80}")
    question = "\n".join([task, "", "The code must pass these tests:", *map(str, record["test_list"])])
    return {"id": record.get("task_id"), "question": question, "category": "coding"}


def _gsm8k(record: Record) -> Row:
    return {"question": record["question"], "category": "math"}


def _math(record: Record) -> Row:
    return {"id": record.get("unique_id"), "question": record["problem"], "category": record.get("subject") or "math"}


def _bfcl(record: Record) -> Row:
    if len(record["question"]) != 1:
        raise RequestError(f"question: must hold the messages of one turn, got {len(record['question'])} turns")
    for function in record["function"]:
        if not isinstance(function, dict) or not {"name", "parameters"} <= function.keys():
            raise RequestError(f"function: must hold objects with name and parameters, got {function!r:.60}")
    return {
        "id": record["id"],
        "messages": record["question"][0],
        "tools": [tool(function) for function in record["function"]],
        "category": record["id"].rstrip("-_0123456789"),
    }


def _sharegpt(record: Record) -> Row | None:
    said = record["conversations"]
    for one in said:
        if not isinstance(one, dict) or not isinstance(one.get("from"), str) or not isinstance(one.get("value"), str):
            raise RequestError(f"conversations: must hold objects with from and value, got {one!r:.60}")
    turns = [one["value"] for one in said if one["from"] in ("human", "user")]
    system = "\n\n".join(one["value"] for one in said if one["from"] == "system")
    row = {"id": record.get("id"), "turns": turns, "category": "chat"}
    return {**row, "system": system} if turns and system else row if turns else None


_WITH_TURNS = Layout({"category": str, "turns": list}, _turns)

LAYOUTS = {
    "humaneval": Layout({"task_id": str, "prompt": str, "entry_point": str}, _humaneval),
    "mbpp": Layout({"code": str, "test_list": list}, _mbpp),
    "gsm8k": Layout({"question": str, "answer": str}, _gsm8k),
    "math-500": Layout({"problem": str, "answer": str}, _math),
    "bfcl": Layout({"id": str, "question": list, "function": list}, _bfcl),
    "sharegpt": Layout({"conversations": list}, _sharegpt),
    "speed-bench": _WITH_TURNS,
    "spec-bench": _WITH_TURNS,
    "mt-bench": _WITH_TURNS,
}
"""Layouts by name."""


def recognized(record: Record) -> Layout | None:
    """Return the layout of a file by its first record, None if it is none of these."""
    return next((layout for layout in LAYOUTS.values() if layout.fits(record)), None)
