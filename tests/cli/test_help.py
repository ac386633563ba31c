"""Help, usage errors and completion, for every command and option that there is."""

import argparse
import shlex
import shutil
import subprocess
import sys

import pytest

from dflash.__main__ import COMMANDS, main, parser_of
from dflash.cli import completion
from dflash.cli.parsing.parser import FILES, SETS, program
from dflash.errors import DFlashError, NotFound
from dflash.model.loading.hub import PACKAGED

FILE_OPTIONS = [
    (command, option, action.dest)
    for command in COMMANDS
    for action in parser_of(command)._actions
    for option in action.option_strings
    if action.metavar in FILES and option.startswith("--")
]


def failed(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("words", [("--help",), *((name, "--help") for name in COMMANDS), ("help", "run"), ("help",)])
def test_help_begins_with_a_sentence_and_has_examples(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    first, blank, usage, *rest = capsys.readouterr().out.splitlines()
    assert first[0].isupper()
    assert first.endswith(".")
    assert blank == ""
    assert usage.startswith("usage: dflash")
    assert len(usage) <= 80
    assert rest[:2] == ["", "examples:"]
    assert rest[3].startswith("  dflash ")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_word_is_broken_in_a_narrow_terminal(command, monkeypatch):
    """But at hyphens, where a list has no blanks, and where a word is longer than a line."""
    texts = {}
    for columns in (44, 400):
        monkeypatch.setenv("COLUMNS", str(columns))
        texts[columns] = parser_of(command).format_help().split()
    pieces = [piece for piece in texts[44] if piece not in texts[400]]
    whole = [word for word in texts[400] if "-" in word or len(word) > 28]
    assert [piece for piece in pieces if not any(piece in word for word in whole)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_can_be_parsed(command):
    parser = parser_of(command)
    for words, _ in parser._examples:
        given = shlex.split(words.partition(" <")[0].partition(" >")[0])
        parser.parse_intermixed_args(given) if command != "serve" else parser.parse_args(given)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/bin/dflash", "dflash"),
        ("C:/dflash.exe", "dflash"),
        ("/lib/dflash/__main__.py", "python -m dflash"),
        ("/lib/dflash/serve/__main__.py", "python -m dflash.serve"),
    ],
)
def test_the_program_is_called_as_it_was_typed(monkeypatch, path, name):
    monkeypatch.setattr(sys, "argv", [path])
    assert program() == name
    assert parser_of("serve").prog == (name if name.endswith("serve") else f"{name} serve")
    assert parser_of("run").prog.startswith(name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rn", "demo", "hi"), "'rn' is neither a command nor a file (did you mean run?)"),
        (("hlep",), "(did you mean help?)"),
        (("bnech", "demo"), "(did you mean bench?)"),
        (("run", "demo", "hi", "--stategy", "mtp"), "--stategy mtp (did you mean --strategy?)"),
        (("serve", "--sequenes", "3"), "(did you mean --sequences?)"),
        (("run", "demo", "hi", "--device", "cuad"), "(did you mean cuda?)"),
        (("completion", "bsh"), "(did you mean bash?)"),
    ],
)
def test_a_usage_error_says_what_was_meant(capsys, words, message):
    err = failed(capsys, *words)
    assert message in err
    assert len(err.splitlines()) == 2


def test_a_file_may_have_a_name_like_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chta").write_text("no model")
    assert main(["chta", "hi"]) == 1
    assert "chta: not a GGUF file" in capsys.readouterr().err


def test_a_model_that_is_nearly_right(capsys):
    assert main(["dmo", "hi"]) == 1
    assert "dmo: there is no such file (did you mean demo?)" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "option", "name"), FILE_OPTIONS)
@pytest.mark.parametrize(
    "form", ["{}: is damaged", "{!r}: is damaged", "dump: {}: is damaged", "chat template {!r}: is damaged"]
)
def test_an_error_about_a_file_names_its_option(command, option, name, form):
    """Whatever words the error begins with."""
    given = argparse.Namespace(**{name: "my.file", "model": "demo"})
    message = parser_of(command).located(given, DFlashError(form.format("my.file")))
    first = next(each for each in parser_of(command)._option_string_actions[option].option_strings if each.startswith("--"))
    assert message == f"{first} my.file: is damaged"


def test_other_errors_stay_as_they_are():
    parser = parser_of("bench")
    given = argparse.Namespace(prompts="code,my.jsonl", draft="d.gguf", model="m.gguf")
    assert parser.located(given, NotFound("is damaged", path="m.gguf")) == "m.gguf: is damaged"
    assert parser.located(given, DFlashError("--draft d.gguf: x")) == "--draft d.gguf: x"
    assert parser.located(given, DFlashError("my.jsonl: line 3: x")) == "--prompts my.jsonl: line 3: x"
    assert SETS in {action.metavar for action in parser._actions}


def test_a_file_in_place_of_a_folder_is_named(capsys, tmp_path):
    path = tmp_path / "states"
    path.touch()
    assert main(["serve", "demo", "--port", "0", "--prefix-cache-folder", str(path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"dflash: --prefix-cache-folder {path}: is a file, must be a folder"


@pytest.mark.parametrize(("words", "option"), [(("run", "demo", "hi"), "--draft"), (("bench", "demo"), "--replay")])
def test_a_missing_file_is_named(capsys, words, option):
    assert main([*words, option, "nosuch.file"]) == 1
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith(f"dflash: {option} nosuch.file: ")


def test_a_set_of_prompts_that_is_nearly_right(capsys):
    assert main(["bench", "demo", "--strategies", "plain", "--prompts", "cod"]) == 1
    assert "--prompts cod: No such file or directory (did you mean code?); bundled sets are" in capsys.readouterr().err


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_is_refused_before_loading(capsys, monkeypatch, prompt):
    monkeypatch.setattr("dflash.load", lambda *_, **__: pytest.fail("it was loaded"))
    assert main(["demo", prompt]) == 1
    assert capsys.readouterr().err == "dflash: prompt: is empty; write a text, or pipe one into dflash\n"


COMPLETED = """
{script}
COMP_WORDS=({words})
COMP_CWORD={at}
_dflash
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(*words, folder=None):
    """Return what bash offers for the last of some words after `dflash`."""
    given = " ".join(f"'{word}'" for word in ("dflash", *words))
    text = COMPLETED.format(script=completion.script("bash"), words=given, at=len(words))
    done = subprocess.run(["bash", "-u", "-c", text], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    return set(done.stdout.split("\n")) - {""}


OFFERED = """
compinit() {{ : }}; compdef() {{ : }}; _files() {{ print FILES }}
compset() {{ : }}; compadd() {{ shift; print -l -- "$@" }}
{script}
words=({words}); CURRENT={at}
_dflash
"""


def offered(*words):
    """Return the words among which zsh chooses the last of some words after `dflash`."""
    given = " ".join(f"'{word}'" for word in ("dflash", *words))
    text = OFFERED.format(script=completion.script("zsh"), words=given, at=len(words) + 1)
    done = subprocess.run(["zsh", "-f", "-c", text], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split("\n")) - {""}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_commands_options_values_and_files():
    assert offered("") == {*COMMANDS, *PACKAGED, "FILES"}
    assert offered("run", "-") > {"--strategy", "-n"}
    assert offered("run", "--strategy", "m") > {"mtp", "plain", "FILES"}
    assert offered("run", "--kv=f") == {"f32", "f16", "q8_0", "q4_0", "FILES"}
    assert offered("run", "de") == {*PACKAGED, "FILES"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_values_and_files(tmp_path):
    (tmp_path / "my model.gguf").touch()
    assert completed("", folder=tmp_path) == {*COMMANDS, *PACKAGED, "my model.gguf"}
    assert completed("c", folder=tmp_path) == {"capture", "chat", "completion"}
    for command in COMMANDS:
        shown = {
            option
            for action in parser_of(command)._actions
            if action.help != argparse.SUPPRESS
            for option in action.option_strings
        }
        assert completed(command, "-", folder=tmp_path) == shown
    assert completed("run", "--strategy", "m", folder=tmp_path) == {"mtp", "mtp-tree", "my model.gguf"}
    assert completed("run", "--device", "=", folder=tmp_path) >= {"auto", "cpu", "cuda"}
    assert completed("run", "--device", "=", "cu", folder=tmp_path) == {"cuda"}
    assert completed("run", "--draft-device", "=", "c", folder=tmp_path) == {"cpu", "cuda"}
    assert completed("run", "--target-gpu", "=", "c", folder=tmp_path) == set()
    assert completed("run", "de", folder=tmp_path) == {"demo", "demo-draft"}
    assert completed("run", "demo", "my", folder=tmp_path) == {"my model.gguf"}


@pytest.mark.parametrize(
    ("shell", "last"), [("bash", "complete -o filenames -F _dflash dflash"), ("zsh", "compdef _dflash dflash")]
)
def test_the_script_of_a_shell_is_printed(capsys, shell, last):
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == last
