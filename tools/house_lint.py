"""Check what ruff can't: plain language, one class per name, small folders, no import cycles.

Run as ``python tools/house_lint.py``; prints one line per finding and exits with 1 if there is any.
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dflash"

OPENINGS = ("What", "Of", "As", "Whether", "Who", "So many")
"""First words that leave a docstring's sentence without a subject."""

CONFLICT = re.compile("<{7} |>{7} ")
"""Markers of a merge conflict."""

PHRASES = re.compile(
    r"\b(so many|in vain|untold|whoever|guess(es|ed|er|ers|ing)?|(is|are|was|were|be) told|lent|tell(s)? of)\b",
    re.IGNORECASE,
)
"""Private words; the glossary in CONTRIBUTING.md has the field's word for each."""

NAMES = re.compile(
    r"(?<![a-z])(guess(es|ed|er|ers|ing)?|told|untold|heard|lent|bury|buried|plant|odds|bets)(?![a-z])", re.IGNORECASE
)
"""The same words as parts of identifiers, in Python files, tests and benchmarks, and in CUDA files."""

MAX_FILES = 16
LARGE_FOLDERS = {
    "dflash/kernels/sample",
    "dflash/kernels/delta",
    "dflash/kernels/linear",
    "dflash/kernels/attention",
    "dflash/kernels/moe",
    "dflash/kernels/formats",
}
"""Folders of one op each, in which every file has one role."""

TWINS = ("cuda", "cpu", "reference")
"""Parts of a path that tell implementations of one thing for several devices apart: they may share class names."""


def main() -> int:
    """Print all findings."""
    sources = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    findings = [
        *(finding for path, text in sources.items() for finding in language(path, text)),
        *identifiers(),
        *headers(),
        *pages(),
        *duplicates(sources),
        *crowded(),
        *cycles(sources),
    ]
    for finding in findings:
        print(finding)
    return bool(findings)


def language(path: Path, text: str) -> Iterator[str]:
    """Findings about docstrings, comments and messages of a Python file."""
    where = path.relative_to(ROOT)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = PHRASES.search(node.value)
            if found:
                yield f"{where}:{node.lineno}: {found[0]!r}"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first = node.value.value.strip()
            if first.startswith(tuple(f"{opening} " for opening in OPENINGS)):
                yield f"{where}:{node.lineno}: opens with {first.split()[0]!r}"
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (found := PHRASES.search(token.string)):
            yield f"{where}:{token.start[0]}: {found[0]!r}"


def identifiers() -> Iterator[str]:
    """Findings about names of Python and CUDA files, tests and benchmarks included."""
    for folder in ("dflash", "tests", "benchmarks", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if found := NAMES.search(path.name):
                yield f"{path.relative_to(ROOT)}: {found[0]!r}"
            for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
                if token.type == tokenize.NAME and (found := NAMES.search(token.string)):
                    yield f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string!r}"
    for path in sorted([*PACKAGE.rglob("*.cu"), *PACKAGE.rglob("*.cuh")]):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := NAMES.search(line.partition("//")[0]):
                yield f"{path.relative_to(ROOT)}:{number}: {found[0]!r}"


def headers() -> Iterator[str]:
    """Findings about comments of CUDA files."""
    for path in sorted([*PACKAGE.rglob("*.cu"), *PACKAGE.rglob("*.cuh")]):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            comment = line.partition("//")[2]
            opening = comment.strip().startswith(tuple(f"{opening} " for opening in OPENINGS)) and line.startswith("//")
            found = PHRASES.search(comment)
            if found or (opening and number == 1):
                yield f"{path.relative_to(ROOT)}:{number}: {found[0] if found else comment.split()[0]!r}"


def pages() -> Iterator[str]:
    """Findings about pages of text."""
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := PHRASES.search(line) or CONFLICT.match(line):
                yield f"{path.relative_to(ROOT)}:{number}: {found[0]!r}"


def duplicates(sources: dict[Path, str]) -> Iterator[str]:
    """Class names that stand in two files, but for those of one thing on two devices."""
    places = defaultdict(list)
    for path, text in sources.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    for name, paths in places.items():
        if len({_without_device(path) for path in paths}) > 1:
            yield f"class {name} stands in {', '.join(str(path.relative_to(ROOT)) for path in paths)}"


def _without_device(path: Path) -> str:
    return re.sub("|".join(f"_?{twin}_?" for twin in TWINS), "", path.relative_to(PACKAGE).as_posix()).replace("//", "/")


def crowded() -> Iterator[str]:
    """Folders with more files than can be taken in at a glance."""
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        n, name = len([path for path in folder.iterdir() if path.is_file()]), folder.relative_to(ROOT).as_posix()
        if n > MAX_FILES and name not in LARGE_FOLDERS:
            yield f"{name} has {n} files, at most {MAX_FILES} are wanted"


def cycles(sources: dict[Path, str]) -> Iterator[str]:
    """Groups of modules that import each other; lazy imports and those for type checkers count."""
    modules = {_module(path): text for path, text in sources.items()}
    graph = {name: _imports(name, text, modules) for name, text in modules.items()}
    for group in _strongly_connected(graph):
        yield f"import cycle: {', '.join(sorted(group))}"


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(name: str, text: str, modules: dict[str, str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each if each in modules else node.module for each in inner}
    return {each for each in found if each in modules and each != name}


def _strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of more than one node (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = [stack.pop()]
            while group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                groups.append(group)

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return groups


if __name__ == "__main__":
    sys.exit(main())
