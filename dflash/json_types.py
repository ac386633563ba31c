"""Types of JSON values."""

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""An object of JSON that is made here: text to JSON value."""

JsonMapping: TypeAlias = Mapping[str, Any]
"""An object of JSON that is only read."""
