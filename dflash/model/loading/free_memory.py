"""Memory that this process may still allocate."""

import os
from collections.abc import Iterator
from pathlib import Path


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that can be allocated without swapping and without the process being killed.

    Returns: the minimum of the machine's available memory and of the memory left in each control group of the process
        (versions 1 and 2, parents included). In a container, ``/proc/meminfo`` shows the host's memory, so that both are
        needed.
    """
    return max(0, min([_of_machine(root), *_of_groups(root)]))


def _of_machine(root: Path) -> int:
    try:
        with (root / "proc/meminfo").open() as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_groups(root: Path) -> Iterator[int]:
    """Yield the bytes left in each control group with a limit; inactive file pages count as free."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, limit, used, inactive = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, limit, used = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            inactive = "total_inactive_file"
        else:
            continue
        group = root / mount / path.strip("/")
        # inside a container the path may be the host's, while the root of the mount is the container's own group
        for folder in (group, *group.parents):
            left = _left(folder, limit, used, inactive)
            if left is not None:
                yield left
            if folder == root / mount:
                break


def _left(folder: Path, limit: str, used: str, inactive: str) -> int | None:
    try:
        most, now = (folder / limit).read_text().strip(), int((folder / used).read_text())
        if most == "max":
            return None
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(most) - now + int(stat.get(inactive, 0))
    except (OSError, ValueError):
        return None
