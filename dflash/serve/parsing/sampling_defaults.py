"""Sampling parameters that a server fills into requests."""

from collections.abc import Mapping
from typing import Any


def filled(body: Any, sampling: Mapping[str, Any]) -> Any:
    """Return a body with the server's sampling parameters in place of those that are absent or null.

    Parameters
    ----------
    body : object
        Parsed JSON of any API; anything except an object is returned unchanged.
    sampling : mapping
        Values by the name of their field, such as ``temperature``; `Sampling` has accepted them.
    """
    if not isinstance(body, dict):
        return body
    return body | {name: value for name, value in sampling.items() if body.get(name) is None}
