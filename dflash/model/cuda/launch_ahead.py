"""Conditions under which drafts are launched before the tokens above them are known on the host."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dflash.kernels.ragged import PENDING
from dflash.model.draft.request import DraftRequest

if TYPE_CHECKING:
    from dflash.model.cuda.draft.target_copy import TargetCopy
    from dflash.model.cuda.model import DeviceModel


def can_launch_ahead(
    target: "DeviceModel | TargetCopy", requests: Sequence[DraftRequest[Any]], order: Sequence[int]
) -> bool:
    """Return True if the last forward of `target` was one decode pass and the requests' sequences are read up to it.

    Kernels of drafts read passes of at most 64 rows.
    """
    last = target.latest
    if last is None or not target.alone or len(last.spans) > PENDING:
        return False
    return all(last.spans[i].state.length == request.state.length for i, request in zip(order, requests, strict=True))


def most_rows(target: "DeviceModel | TargetCopy", order: Sequence[int]) -> int:
    """Return the most rows that can be accepted in some spans of the last forward of `target`."""
    last = target.latest
    assert last is not None, "`can_launch_ahead` returned True"
    sizes = {i: len(last.spans[i].tokens) for i in order}
    requests = target.device_requests
    return min(sum(min(n, 1 + requests[i].n_draft) if i in requests else n for i, n in sizes.items()), PENDING)
