"""Progress bar on stderr for loading."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

STAGES = 8
"""Number of loading stages on the first start; later starts have fewer."""


@contextmanager
def stages(shown: bool) -> Iterator[Callable[[str], None] | None]:
    """Draw a bar that advances with the stages of loading.

    Yields
    ------
    callable or None
        Value for the argument `progress` of `dflash.generation.load.start`.
    """
    if not shown:
        yield None
        return
    with tqdm(total=STAGES, bar_format="{desc:<16} {bar:20} {elapsed}", leave=False) as bar:

        def report(stage: str) -> None:
            bar.set_description_str(stage)
            bar.update()

        yield report
