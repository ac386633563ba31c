"""Sampling parameters and limits that a server fills into requests."""

from collections.abc import Mapping
from typing import Any

from dflash.serve.request_fields.table import ROWS

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Names of the maximum output tokens in the APIs."""

_NAMES = {*_LIMITS, *(row.name for row in ROWS if row.to in _LIMITS)}
"""The same with those of other servers."""


def filled(body: object, sampling: Mapping[str, Any]) -> Any:
    """Return a body with the server's parameters in place of those that are absent or null.

    sampling: values by the name of their field, such as ``temperature``; `Sampling` has accepted them. ``max_tokens`` is set
        under the names of all APIs, unless the body has any of them.
    """
    if not isinstance(body, dict):
        return body
    most = sampling.get("max_tokens")
    if most is not None:
        others = {name: value for name, value in sampling.items() if name != "max_tokens"}
        has_limit = any(body.get(name) is not None for name in _NAMES)
        sampling = others if has_limit else {**others, "max_tokens": most, "max_output_tokens": most}
    return body | {name: value for name, value in sampling.items() if body.get(name) is None}
