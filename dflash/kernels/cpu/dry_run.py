"""Record which kernels are called, without running or compiling any of them.

Which kernels a model needs, and with which types of arguments, is known from the calls alone: kernels write to their
arguments, and what is computed decides nothing. So a forward in a dry run takes milliseconds and names all of them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any, NamedTuple


class Job(NamedTuple):
    """A kernel to compile."""

    name: str
    """Equal in all processes for the same kernel and types."""

    parts: dict[str, int]
    """Names of the kernel's functions, and the bytes of their Python code: about proportional to the time they take."""

    compile: Callable[[], object]


_EACH = 300
"""Bytes of code that take as long as what every kernel needs, besides its parts; from a profile of the demo."""

_jobs: dict[str, Job] | None = None


@contextmanager
def dry_run() -> Iterator[dict[str, Job]]:
    """Record the kernels that are called in a ``with`` block. For processes that do nothing else with these kernels."""
    global _jobs  # noqa: PLW0603 - kernels are called from everywhere
    _jobs = {}
    try:
        yield _jobs
    finally:
        _jobs = None


def record(function: Callable[..., Any], types: tuple[Any, ...], compile_now: Callable[[], object]) -> bool:
    """Record a kernel in a dry run; return False outside of one."""
    if _jobs is None:
        return False
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    name = f"{function.__module__}.{function.__qualname__} {types} {cells}"
    _jobs.setdefault(name, Job(name, parts_of(function), compile_now))
    return True


def intercept(entry: Any) -> None:
    """Let calls of a function that is not compiled yet be recorded in a dry run."""
    compile_and_return = entry._compile_for_args

    def compile_for_args(*args: Any) -> Any:
        types = tuple(entry.typeof_pyval(arg) for arg in args) if _jobs is not None else ()
        if record(entry.py_func, types, lambda: entry.compile(types)):
            return _one
        return compile_and_return(*args)

    entry._compile_for_args = compile_for_args


def parts_of(function: Callable[..., Any]) -> dict[str, int]:
    """Return the names of a function and of all parts that it calls, with the bytes of their Python code."""
    found, waiting = dict[str, int](), [function]
    while waiting:
        each = waiting.pop()
        name = f"{each.__module__}.{each.__qualname__}"
        if name not in found:
            found[name] = len(each.__code__.co_code)
            waiting += [called for value in _mentioned(each) if (called := getattr(value, "py_func", None))]
    return found


def grouped(jobs: Iterable[Job]) -> list[list[tuple[Job, int]]]:
    """Divide jobs into groups that one process should compile, because most of their parts are the same.

    Returns: groups, those with the most code first, of jobs with the work they are: a number of bytes of code.
    """
    groups = list[tuple[dict[str, int], list[tuple[Job, int]]]]()
    for job in sorted(jobs, key=lambda job: (-sum(job.parts.values()), job.name)):
        shares = [sum(size for part, size in job.parts.items() if part in parts) for parts, _ in groups]
        own = sum(job.parts.values())
        if 2 * max(shares, default=0) > own:
            parts, members = groups[shares.index(max(shares))]
        else:
            parts, members = dict[str, int](), list[tuple[Job, int]]()
            groups.append((parts, members))
        new = sum(size for part, size in job.parts.items() if part not in parts)
        members.append((job, _EACH + new + (own - new) // 2))  # types of known parts are not inferred again
        parts |= job.parts
    return sorted((members for _, members in groups), key=lambda members: -sum(work for _, work in members))


def _mentioned(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield the values of global and enclosed names of a function, also those in modules."""
    code: CodeType = function.__code__
    values = [function.__globals__.get(name) for name in code.co_names]
    yield from values
    for value in values:
        if isinstance(value, ModuleType):
            yield from (getattr(value, name, None) for name in code.co_names)
    yield from (cell.cell_contents for cell in function.__closure__ or ())


def _one(*_: Any) -> int:
    """Stand for a kernel: some return how many things they have found."""
    return 1
