"""Commands of a chat: lines that begin with a slash."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dflash.cli import arguments as common
from dflash.cli.answer import show_tokens
from dflash.cli.conversation.chat import Chat
from dflash.cli.conversation.file import load_messages, save_messages
from dflash.cli.terminal import has_terminal, put, say, table, wrapped
from dflash.decode.registry import name as name_of
from dflash.decode.registry import parts
from dflash.errors import DFlashError, EngineFailed, RequestError, did_you_mean

if TYPE_CHECKING:
    from dflash.decode.drafting.drafter import Strategy

Run = Callable[[Chat, str], object]


class Command(NamedTuple):
    """A command: its argument, its description, and what it does with a chat and the text after its name."""

    argument: str
    text: str
    run: Run


COMMANDS: dict[str, Command] = {}
"""Commands by name, in the order of the help."""

MORE = 128
"""Output tokens of a comparison beyond those of the last answer, where --max-tokens gives no number: it is not cut short."""


def command(name: str, argument: str, text: str) -> Callable[[Run], Run]:
    """Add a command."""

    def add(run: Run) -> Run:
        COMMANDS[name] = Command(argument, text, run)
        return run

    return add


def run_command(chat: Chat, line: str) -> bool:
    """Run a line that begins with a slash. Return False to end the chat."""
    name, _, rest = line.partition(" ")
    if name in ("/exit", "/quit"):
        return False
    found = COMMANDS.get(name)
    if found is None:
        say(wrapped(f"{name}: unknown command{did_you_mean(name, [*COMMANDS, '/exit'])}; /help lists all"))
        return True
    try:
        found.run(chat, rest.strip())
    except EngineFailed:
        raise
    except DFlashError as error:
        say(wrapped(f"dflash: {error}"))
    except KeyboardInterrupt:
        say("stopped")
    return True


@command("/help", "", "show this list")
def _help(_: Chat, __: str) -> None:
    rows = [(f"{name} {each.argument}".strip(), each.text) for name, each in COMMANDS.items()]
    rows.append(("/exit", "leave (also Ctrl-D); Ctrl-C stops an answer"))
    rows.append(('"""', "begin and end a message of several lines; a line that ends in \\ goes on, too"))
    size = max(len(row[0]) for row in rows)
    for usage, text in rows:
        say(wrapped(f"{usage:<{size}}  {text}", " " * (size + 2)))


@command("/strategy", "[NAME]", "show or change the decoding strategy, as dflash:7 or ddtree:22")
def _strategy(chat: Chat, name: str) -> None:
    if name:
        strategy = _named(chat, name)
        common.prepare(chat.lm, strategy)
        chat.settings["strategy"] = strategy
    say(f"strategy {name_of(chat.settings['strategy'])}")


@command("/recover", "[NAME,...]", "show or change the recoveries, as loop,min:20; none turns them off")
def _recover(chat: Chat, names: str) -> None:
    if names:
        from dflash.generation.recovery.names import settle

        chat.settings["recover"] = settle(names)
    say(f"recoveries {chat.settings['recover'] or 'none'}")


@command("/set", "[NAME VALUE]", "show or change sampling, as temperature 0.7 or max_tokens 200")
def _set(chat: Chat, text: str) -> None:
    name, _, value = text.partition(" ")
    if name:
        chat.settings |= common.sampling_value(name.replace("-", "_"), value.strip())
    shown = {name: chat.settings[name] for name in common.SAMPLING if chat.settings[name] is not None}
    say(wrapped(", ".join(f"{name} {value}" for name, value in shown.items())))


@command("/compare", "[NAME ...]", "answer the last message by two or more strategies: tokens per step, same text?")
def _compare(chat: Chat, text: str) -> None:
    """Compare as `dflash.compare` does: one request at a time, without the prefix cache."""
    from dflash.evaluation.compare import compare
    from dflash.evaluation.prompt_sets import Case

    users = [index for index, message in enumerate(chat.messages) if message["role"] == "user"]
    if not users:
        raise RequestError("/compare: nothing was asked yet; write a message first")
    current = name_of(chat.settings["strategy"])
    names = list(dict.fromkeys(name for part in parts(text.replace(" ", ",")) if (name := part.strip())))
    if len(names) < 2:
        names = list(dict.fromkeys([current, *(names or ["plain"])]))
    if len(names) < 2:
        raise RequestError(f"/compare: needs two strategies, as in /compare {current} lookup")
    sampling = {name: chat.settings[name] for name in common.SAMPLING if chat.settings[name] is not None}
    limit = sampling.pop("max_tokens", None) or MORE + (len(chat.answers[-1].tokens) if chat.answers else 0)
    options = {name: value for name, value in chat.template.items() if value}
    found = compare(
        chat.lm,
        [Case("the last message", chat.messages[: users[-1] + 1], (), options)],
        {name: chat.settings["strategy"] if name == current else _named(chat, name) for name in names},
        max_tokens=limit,
        stop=chat.settings["stop"],
        progress=has_terminal(),
        **sampling,
    )
    rows = [("strategy", "tokens/step", "accepted", "tokens/s", "text")]
    for row in found.rows:
        accepted = "" if row.acceptance is None else f"{row.acceptance:.0%}"
        same = f"differs from token {row.differs[0][1]}" if row.differs else "same"
        rows.append((row.name, f"{row.tokens_per_step:.2f}", accepted, f"{row.rate:,.1f}", same))
    put(table(rows, right=(1, 2, 3)))
    say(wrapped(f"at most {limit:,} tokens each, one after the other, without the cache"), style="2")


@command("/tokens", "", "show the last answer coloured by the origin of its tokens")
def _tokens(chat: Chat, _: str) -> None:
    if not chat.deltas:
        raise RequestError("/tokens: there is no answer yet")
    show_tokens(chat.deltas, chat.lm.tokenizer)


@command("/stats", "", "show tokens, rates and acceptance of the last answer and of all")
def _stats(chat: Chat, _: str) -> None:
    from dflash.generation.display import summary

    if not chat.answers:
        raise RequestError("/stats: there is no answer yet")
    last, steps = chat.answers[-1], [step for each in chat.answers for step in each.steps if step.tokens]
    say(wrapped(f"strategy {name_of(last.strategy)}"))
    for line in summary(last).splitlines():
        say(wrapped(line))
    prompts, cached = (sum(getattr(each.usage, f"{name}_tokens") for each in chat.answers) for name in ("prompt", "cached"))
    n, written = len(chat.answers), sum(len(step.tokens) for step in steps)
    drafted = sum(step.drafted for step in steps)
    found = [f"{n} answer{'s' * (n != 1)}", f"{prompts:,} prompt tokens, {cached:,} of them cached", f"{written:,} tokens"]
    found.append(f"{written / max(len(steps), 1):.2f} tokens per step")
    if drafted:
        found.append(f"{sum(step.accepted for step in steps) / drafted:.0%} of draft tokens accepted")
    say(wrapped(f"all: {', '.join(found)}"))


@command("/reasoning", "[dim|fold|hide]", "show or change how reasoning is shown")
def _reasoning(chat: Chat, name: str) -> None:
    if name and name not in common.REASONING:
        raise RequestError(f"/reasoning: must be one of {', '.join(common.REASONING)}, got {name!r:.40}")
    chat.display["reasoning"] = name or chat.display["reasoning"]
    say(f"reasoning {chat.display['reasoning']}")


@command("/system", "[TEXT]", "set the system message, or remove it, and clear the conversation")
def _system(chat: Chat, text: str) -> None:
    chat.system = text or None
    chat.clear()


@command("/regen", "", "answer the last message again; a fixed seed is raised by one")
def _regen(chat: Chat, _: str) -> None:
    text = chat.undo()
    if text is None:
        raise RequestError("/regen: there is no message yet")
    if chat.settings["temperature"] == 0:
        say("temperature is 0, so the text will be the same; /set temperature 0.8 changes that")
    elif chat.settings["seed"] is not None:
        chat.settings["seed"] += 1
    chat.send(text)


@command("/undo", "", "remove the last question and its answer")
def _undo(chat: Chat, _: str) -> None:
    text = chat.undo()
    say("nothing to undo" if text is None else f"removed: {text if len(text) <= 40 else text[:37] + '...'}")


@command("/clear", "", "clear the conversation")
def _clear(chat: Chat, _: str) -> None:
    chat.clear()


@command("/reset", "", "clear the conversation, and return to the first system message, strategy and sampling")
def _reset(chat: Chat, _: str) -> None:
    chat.reset()


@command("/save", "FILE", "save the conversation as a line of JSON")
def _save(chat: Chat, name: str) -> None:
    save_messages(_path("/save", name), chat.messages)
    say(f"{len(chat.messages)} messages in {name}")


@command("/load", "FILE", "load a conversation")
def _load(chat: Chat, name: str) -> None:
    chat.messages = load_messages(_path("/load", name))
    first = chat.messages[0]
    chat.system = first["content"] if first["role"] == "system" else None
    say(f"{len(chat.messages)} messages from {name}")


def _path(command: str, name: str) -> Path:
    if not name:
        raise RequestError(f"{command}: needs the name of a file")
    return Path(name).expanduser()


def _named(chat: Chat, name: str) -> "Strategy":
    return common.strategy_of(chat.arguments, name)
