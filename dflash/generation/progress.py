"""A line on stderr for what takes a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

STAGES = 8
"""What loading tells the first time on a machine; later it is less."""


@contextmanager
def stages(shown: bool) -> Iterator[Callable[[str], None] | None]:
    """Draw a bar that advances with the stages of loading.

    Parameters
    ----------
    shown : bool
        Whether there is a bar at all.

    Yields
    ------
    callable or None
        For the `progress` of `dflash.generation.load.start`.
    """
    if not shown:
        yield None
        return
    with tqdm(total=STAGES, bar_format="{desc:<16} {bar:20} {elapsed}", leave=False) as bar:

        def tell(stage: str) -> None:
            bar.set_description_str(stage)
            bar.update()

        yield tell
