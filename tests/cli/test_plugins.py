"""Drafters and recoveries in files outside the package, on the command line and by entry points."""

import importlib.metadata
import sys
from types import SimpleNamespace

import pytest

import dflash.decode.drafters
import dflash.generation.recovery  # noqa: F401 - the tables hold the names of the package
from dflash.__main__ import main
from dflash.cli.plugins import load_plugin
from dflash.decode.registry import DRAFTERS
from dflash.decode.registry.recoveries import RECOVERIES
from dflash.decode.registry.word_table import load_entry_points
from dflash.errors import DFlashError

SOURCE = '''
from dataclasses import dataclass
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.recoveries.loop_guard import LoopGuard
from dflash.decode.registry import register
from dflash.decode.registry import recoveries

@register("from-outside", number="TOKENS", parameter="n_draft")
@dataclass(frozen=True)
class Outside(PromptLookup):
    """A drafter in a file of its own."""

@recoveries.register("outer-guard")
@dataclass(frozen=True)
class Guard(LoopGuard):
    """A recovery in a file of its own."""
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A file with a drafter and a recovery; both tables are as before afterwards."""
    for table in (DRAFTERS, RECOVERIES):
        monkeypatch.setattr(table, "_entries", dict(table))
    path = tmp_path / "outside_plugin.py"
    path.write_text(SOURCE)
    yield path
    sys.modules.pop(path.stem, None)


def test_a_file_on_the_command_line_drafts(plugin, capsys):
    words = ["run", "demo", "a b c a b c a b", "--raw", "--max-tokens", "8", "-t", "1", "--device", "cpu"]
    assert main([*words, "--strategy", "plain"]) == 0
    plain = capsys.readouterr().out
    assert main([*words, "--plugin", str(plugin), "--strategy", "from-outside:6", "--recover", "outer-guard"]) == 0
    assert capsys.readouterr().out == plain


def test_a_file_may_be_named_twice_and_its_name_belongs_to_one_file(plugin, tmp_path):
    assert load_plugin(str(plugin)) == load_plugin(str(plugin))
    other = tmp_path / "more" / plugin.name
    other.parent.mkdir()
    other.write_text("")
    with pytest.raises(DFlashError, match="is imported already; give the file another name"):
        load_plugin(str(other))


@pytest.mark.parametrize(
    ("text", "message"),
    [("1 / 0", "ZeroDivisionError"), ("from dflash.decode.registry import register\nregister('mtp')(int)", "name of MTP")],
)
def test_a_file_that_fails_says_why_and_may_be_mended(plugin, text, message, capsys):
    plugin.write_text(text)
    assert main(["info", "demo", "--plugin", str(plugin)]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
    plugin.write_text(SOURCE)
    load_plugin(str(plugin))
    assert "from-outside" in DRAFTERS


def test_a_missing_module_is_one_sentence(capsys):
    assert main(["info", "demo", "--plugin", "no_such_module_at_all"]) == 1
    assert "No module named 'no_such_module_at_all'" in " ".join(capsys.readouterr().err.split())


def test_entry_points_register_and_one_that_fails_is_logged(plugin, monkeypatch, caplog):
    good = SimpleNamespace(name="good", load=lambda: load_plugin(str(plugin)))
    bad = SimpleNamespace(name="bad", load=lambda: 1 / 0)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: {"dflash.drafters": [bad, good]}[group])
    load_entry_points("dflash.drafters")
    assert "from-outside" in DRAFTERS
    assert "the entry point bad of dflash.drafters can't be imported" in caplog.text
