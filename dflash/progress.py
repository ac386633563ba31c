"""Bars on stderr for what takes a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from dflash.model.load import STAGES


@contextmanager
def stages(shown: bool) -> Iterator[Callable[[str], None] | None]:
    """Draw the stages of loading.

    Parameters
    ----------
    shown : bool
        Whether there is a bar at all.

    Yields
    ------
    callable or None
        For the `progress` of `load_model`.
    """
    if not shown:
        yield None
        return
    with tqdm(total=len(STAGES), bar_format="{desc:<24} {bar:20} {elapsed}", leave=False) as bar:

        def tell(stage: str) -> None:
            bar.n = STAGES.index(stage)
            bar.set_description_str(stage)

        yield tell
