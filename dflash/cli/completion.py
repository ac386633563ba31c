"""`completion`: a script with which a shell completes commands, options and their values."""

import argparse
from collections.abc import Iterable

HELP = "print a script that completes commands and options in bash or zsh"
USAGE = "SHELL"
EXAMPLES = (
    ("bash > ~/.local/share/bash-completion/completions/dflash", "bash: once, for all later shells"),
    ("zsh >> ~/.zshrc", "zsh: once, for all later shells"),
)

SHELLS = ("bash", "zsh")

_FOUND = """\
    case "$command $prev" in
{values}
        *) if [ "$word" -eq 1 ]; then found=$'{commands}'; else case "$command $cur" in
{options}
            *) found=$'{models}' ;;
        esac; fi ;;
    esac
"""
"""Sets `found` to the words, one a line, that may follow."""

_BASH = """\
_dflash() {{
    local IFS=$'\\n' found='' cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" word="$COMP_CWORD"
    if [ "$cur" = = ]; then cur=''; elif [ "$prev" = = ]; then prev="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
{found}    COMPREPLY=( $(compgen -W "$found" -- "$cur") )
    case "$cur" in -*) ;; *) COMPREPLY+=( $(compgen -f -- "$cur") ) ;; esac
}}
complete -o filenames -F _dflash dflash
"""

_ZSH = """\
autoload -Uz compinit && compinit
_dflash() {{
    local found='' cur="$words[CURRENT]" prev="$words[CURRENT-1]" command="$words[2]" word="$((CURRENT-1))"
    if [[ "$cur" == --*=* ]]; then prev="${{cur%%=*}}" cur="${{cur#*=}}"; compset -P '*='; fi
{found}    compadd -- ${{(f)found}}
    case "$cur" in -*) ;; *) _files ;; esac
}}
compdef _dflash dflash
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=" or ".join(SHELLS))


def main(arguments: argparse.Namespace) -> int:
    """Print the script."""
    print(script(arguments.shell), end="")
    return 0


def script(shell: str) -> str:
    """Return the completion function of a shell, made from the parsers of all commands."""
    from dflash.__main__ import COMMANDS, parser_of
    from dflash.model.loading.hub import PACKAGED

    values, options = [], []
    for command in COMMANDS:
        known = _values(parser_of(command))
        options.append(f"            {_quoted(command)}' '-*) found=$'{_lines(known)}' ;;")
        for option, words in known.items():
            if words:
                values.append(f"        {_quoted(f'{command} {option}')}) found=$'{_lines(words)}' ;;")
    found = _FOUND.format(
        values="\n".join(values),
        options="\n".join(options),
        commands=_lines([*COMMANDS, *PACKAGED]),
        models=_lines(PACKAGED),
    )
    return (_ZSH if shell == "zsh" else _BASH).format(found=found)


def _values(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Return the words that may follow each option."""
    from dflash.decode.registry import recoveries
    from dflash.decode.registry import words as strategy_words
    from dflash.evaluation.prompt_sets import BUNDLED
    from dflash.generation.recovery import names  # noqa: F401  registers the recoveries that need a tokenizer

    strategies = list(strategy_words())
    known = {
        "strategy": strategies,
        "strategies": strategies,
        "allow_strategies": [*strategies, "none"],
        "recover": list(recoveries.RECOVERIES),
        "prompts": list(BUNDLED),
        "draft": ["auto", "demo-draft"],
        "device": ["auto", "cpu", "cuda"],
        "draft_device": ["cpu", "cuda"],
    }
    found: dict[str, list[str]] = {}
    for action in parser._actions:
        words = list(map(str, action.choices)) if action.choices is not None else known.get(action.dest, [])
        words = [] if action.metavar == "N" else words  # --target-gpu sets the device by its number
        found |= {} if action.help is argparse.SUPPRESS else dict.fromkeys(action.option_strings, words)
    return found


def _quoted(text: str) -> str:
    return "'" + text + "'"


def _lines(words: Iterable[str]) -> str:
    return "\\n".join(words)
