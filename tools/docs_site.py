"""Parts of the documentation site that are not in `docs/`: pages of results and of the command line, links elsewhere."""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*\.\.?/[^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of results, and one with the help of each command."""
    for path in sorted(RESULTS.glob("*.md")):
        files.append(File.generated(config, f"results/{path.name}", content=path.read_text(encoding="utf-8")))
    files.append(File.generated(config, "command-line.md", content=_command_line()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to pages of results at the site's; show other files of the checkout by name, if they exist."""
    here = RESULTS if page.file.src_uri.startswith("results/") else ROOT / "docs"

    def replaced(found: re.Match[str]) -> str:
        bang, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = (here / target).resolve()
        if not path.exists():
            raise SystemExit(f"{page.file.src_uri}: there is no {target}")
        depth = "../" if here == RESULTS else ""
        if path.parent == RESULTS:
            return f"[{text}]({depth}results/{path.name}{anchor})"
        if path.parent == ROOT / "docs":
            return f"{bang}[{text}]({depth}{path.name}{anchor})"
        return f"{text} (`{path.relative_to(ROOT)}`)"

    return _LINK.sub(replaced, markdown)


def _command_line() -> str:
    from dflash.__main__ import COMMANDS

    helps = [f"## {command}\n\n```text\n{_help(command)}```\n" for command in COMMANDS]
    return "\n".join(["# Command line\n\nThe help of each command, as it prints it.\n", *helps])


def _help(command: str) -> str:
    from dflash.__main__ import main

    out = io.StringIO()
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([command, "--help"])
    return out.getvalue()
