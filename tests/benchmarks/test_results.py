"""Pages of results: short, listed in their index, with a command above each table that runs a script of this repository."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "results"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
MOST_LINES = 150

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="an installed package has no results")


def commands_above_tables(text):
    """Return the commands of the paragraph above each table."""
    paragraphs = re.split(r"\n\s*\n", text)
    return [
        re.findall(r"`([^`]+)`", above) if above.startswith("Reproduce: ") else []
        for above, table in zip(["", *paragraphs], paragraphs, strict=False)
        if table.startswith("|")
    ]


def what_runs(command):
    """Return the scripts, tests and modules that a command names, as paths or importable names."""
    examples = [name.replace(".", "/") for name in re.findall(r"-m (train_draft[\w.]*)", command)]
    files = re.findall(r"(?:benchmarks|tests|tools)/[\w/.-]*\w", command)
    files += [f"examples/{name}" + (".py" if "/" in name else "") for name in examples]
    return files + re.findall(r"-m (dflash\S*)(?: (\w+))?", command)


def exists(named):
    if isinstance(named, str):
        return (ROOT / named).exists()
    package, command = named
    return importlib.util.find_spec(f"{package}.cli.{command}") is not None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_each_table_of_a_page_has_a_command_that_exists(path):
    text = path.read_text("utf-8")
    assert text.count("\n") <= MOST_LINES
    for commands in commands_above_tables(text):
        assert commands, "a table without a paragraph `Reproduce: `command`` above it"
        for command in commands:
            named = what_runs(command)
            assert named or command == "make test", command
            assert all(map(exists, named)), command


def test_the_index_lists_every_page():
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (FOLDER / "README.md").read_text("utf-8"))
    assert sorted(listed) == [path.name for path in PAGES]


def test_links_between_pages():
    for path in FOLDER.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", path.read_text("utf-8")):
            assert (FOLDER / link).exists(), f"{path.name}: {link}"


def test_every_named_script_exists():
    """Scripts are also named in the text around the tables."""
    for path in FOLDER.glob("*.md"):
        for script in re.findall(r"(?:benchmarks|tests|tools)/[\w/-]+\.(?:py|sh|json)", path.read_text("utf-8")):
            assert (ROOT / script).exists(), f"{path.name}: {script}"


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("# A\n\nReproduce: `make test`\n\n| a |\n| - |\n\nwords\n\n| b |\n", [["make test"], []]),
        ("words `make test`\n\n| a |\n", [[]]),
    ],
)
def test_commands_above_tables(text, commands):
    assert commands_above_tables(text) == commands


def test_what_a_command_runs():
    assert what_runs("python benchmarks/gone.py FILE") == ["benchmarks/gone.py"]
    assert not exists("benchmarks/gone.py")
    assert exists(*what_runs("python -m dflash bench FILE"))
    assert not exists(("dflash", "gone"))
