"""Agent programs: how each is run on the recipe of a page in ``docs/``, and which tools it offers."""

import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
ADDRESS = "http://127.0.0.1:8000"
SEARCH = os.pathsep.join(filter(None, [os.environ.get("DFLASH_CLIENTS"), os.environ.get("PATH")]))
"""Folders where the programs are looked for: that of ``DFLASH_CLIENTS`` comes first."""

WRITTEN = 'print("é", 1 < 2, "\\n", \'$HOME\')\n\nprint(&[])\n'
"""Content of the file that the model writes: quotes, escapes, an empty line, characters of XML and of other alphabets."""

END = "Both steps are complete: **42** files?"

SHELL = f"cat > hello.txt <<'END'\n{WRITTEN}END"


def called(name, arguments):
    """Text of a call in the form of the demo's chat template."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    parameters = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


@dataclass(frozen=True)
class Client:
    """One program.

    Parameters
    ----------
    program : str
        Its command.
    page, heading : str
        Section with its recipe. The last line of its commands starts the program, with `arguments` after it.
    arguments : str
        Run it on ``$TASK`` without a terminal and without questions.
    look, write : (str, dict)
        Call of a tool that lists the files, and of one that writes ``hello.txt``. ``{folder}`` is the working folder.
    config : str
        Path of the section's settings in the home folder, if it has any.
    side : int
        Requests beside the conversation, such as those for titles.
    reasons : bool
        Whether it sends reasoning back, and so keeps the beginning of the prompt from turn to turn.
    quiet : dict
        Environment without telemetry, updates and downloads.
    """

    program: str
    page: str
    heading: str
    arguments: str
    look: tuple = ()
    write: tuple = ()
    config: str = ""
    side: int = 0
    reasons: bool = True
    quiet: dict = field(default_factory=dict)

    def steps(self, folder):
        """Outputs of the model for the task: two calls; one text for a program without tools."""
        if not self.look:
            return [f"{END}\n\nhello.txt\n```\n{WRITTEN}```"]
        return [called(*call).replace("{folder}", str(folder)) for call in (self.look, self.write)] + [END]

    def prepare(self, home, address):
        """Write its settings; returns the shell script that runs it."""
        page = (DOCS / self.page).read_text(encoding="utf-8").replace(ADDRESS, address)
        section = re.search(rf"^## {self.heading}\n(.*?)(?=^## |\Z)", page, re.M | re.S)[1]
        blocks = re.findall(r"^```(\w+)\n(.*?)^```", section, re.M | re.S)
        if self.config:
            (settings,) = [text for kind, text in blocks if kind != "sh"]
            path = home / self.config
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(settings, encoding="utf-8")
        scripts = [text for kind, text in blocks if kind == "sh"] or re.findall(rf"`({self.program}\b[^`\n]*)`", section)
        lines = [line for line in scripts[0].splitlines() if "dflash.serve" not in line]
        return "\n".join([*lines[:-1], f"{lines[-1]} {self.arguments}"])


CLIENTS = [
    Client(
        "claude", "anthropic.md", "Claude Code",
        '-p "$TASK" --permission-mode acceptEdits --allowedTools "Bash,Write,Read,Edit"',
        look=("Bash", {"command": "ls"}),
        write=("Write", {"file_path": "{folder}/hello.txt", "content": WRITTEN}),
        quiet={"DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_ERROR_REPORTING": "1"},
    ),
    Client(
        "codex", "responses.md", "Codex",
        'exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "$TASK"',
        look=("exec_command", {"cmd": "ls"}),
        write=("exec_command", {"cmd": SHELL}),
        config=".codex/config.toml",
    ),
    Client(
        "opencode", "clients.md", "opencode, Kilo",
        'run "$TASK"',
        look=("bash", {"command": "ls", "description": "List"}),
        write=("write", {"filePath": "{folder}/hello.txt", "content": WRITTEN}),
        config=".config/opencode/opencode.json", side=1,
        quiet={
            "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
    ),
    Client(
        "qwen", "clients.md", "Qwen Code",
        '-p "$TASK" --yolo',
        look=("glob", {"pattern": "*.md"}),  # its shell loses the output of short commands now and then
        write=("write_file", {"file_path": "{folder}/hello.txt", "content": WRITTEN}),
        config=".qwen/settings.json",
    ),
    Client(
        "pi", "clients.md", "pi",
        '-p "$TASK"',
        look=("bash", {"command": "ls"}),
        write=("write", {"path": "hello.txt", "content": WRITTEN}),
        config=".pi/agent/models.json",
        quiet={"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"},
    ),
    Client(
        "copilot", "clients.md", "Copilot CLI",
        '-p "$TASK" --allow-all-tools',
        look=("bash", {"command": "ls", "description": "List"}),
        write=("create", {"path": "{folder}/hello.txt", "file_text": WRITTEN}),
        quiet={"COPILOT_AUTO_UPDATE": "false"},
    ),
    Client(
        "cline", "clients.md", "Cline",
        '"$TASK"',
        look=("run_commands", {"commands": ["ls"]}),
        write=("editor", {"path": "{folder}/hello.txt", "new_text": WRITTEN}),
        quiet={"CLINE_TELEMETRY_DISABLED": "1", "CLINE_NO_AUTO_UPDATE": "1", "POSTHOG_TELEMETRY_ENABLED": "false"},
    ),
    Client(
        "cn", "clients.md", "Continue",
        '-p --auto "$TASK"',
        look=("List", {"dirpath": "."}),
        write=("Write", {"filepath": "hello.txt", "content": WRITTEN}),
        config=".continue/config.yaml", reasons=False,
        quiet={"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_AUTO_UPDATED": "1", "FORCE_NO_TTY": "true"},
    ),
    Client(
        "aider", "clients.md", "aider",
        '--message "$TASK" --yes-always --no-check-update --analytics-disable --no-show-release-notes --no-detect-urls',
        config=".aider.model.settings.yml", side=1,
        quiet={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
]  # fmt: skip


def found(program):
    """Path of a program, or None."""
    return shutil.which(program, path=SEARCH)
