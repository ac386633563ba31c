"""Lines of each folder of the package, code among them, and uses of `Any`; ceilings stand in ``pyproject.toml``.

Run as ``python tools/sizes.py``; prints a table, exits with 1 if a ceiling is exceeded. A commit that raises one says why.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Print the table and what exceeds its ceiling."""
    ceilings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["sizes"]
    folders: dict[str, list[int]] = {}
    uses = 0
    for path in sorted((ROOT / "dflash").rglob("*")):
        if path.suffix not in (".py", ".cu", ".cuh", ".js", ".css", ".html"):
            continue
        text = path.read_text(encoding="utf-8")
        inner = path.relative_to(ROOT / "dflash").parts
        total = folders.setdefault(inner[0] if len(inner) > 1 else "top", [0, 0])
        total[0] += text.count("\n")
        total[1] += code_lines(text, path.suffix)
        uses += text.count("Any") and uses_of_any(text) if path.suffix == ".py" else 0
    folders["all"] = [sum(column) for column in zip(*folders.values(), strict=True)]
    for name, (lines, code) in folders.items():
        print(f"{name:12}{lines:8,} lines {code:8,} code, at most {ceilings.get(name, 0):7,}")
    print(f"{'Any':12}{uses:8,} uses,           at most {ceilings['any']:7,}")
    over = [name for name, (_, code) in folders.items() if code > ceilings.get(name, 0)]
    over += ["any"] * (uses > ceilings["any"])
    for name in over:
        print(f"sizes: {name} exceeds its ceiling in [tool.sizes] of pyproject.toml")
    return bool(over)


def code_lines(text: str, suffix: str) -> int:
    """Return the number of lines without blank ones, comments and docstrings."""
    if suffix != ".py":
        bare = re.sub(r"/\*.*?\*/|<!--.*?-->", "", text, flags=re.DOTALL)
        return sum(bool(line.strip()) and not line.strip().startswith("//") for line in bare.splitlines())
    prose = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and number not in prose for number, line in lines)


def uses_of_any(text: str) -> int:
    """Return how often the name `Any` is used, imports not counted."""
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(ast.parse(text)))


if __name__ == "__main__":
    sys.exit(main())
