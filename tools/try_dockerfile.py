"""Execute the steps of the Dockerfile in an empty Debian root, run `dflash info`, and ask the server in it for a completion.

python tools/try_dockerfile.py [--target cpu|cuda] [--root FOLDER]      as root, with debootstrap and the package registries

An image can't be built where no images can be had. Debian's packages make the root that the base image would be; `RUN` is
a command in it, `COPY` a copy, `ENV`, `USER`, `WORKDIR`, `ENTRYPOINT` and `CMD` are what they say.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[1]
PORT = "8123"
SHARED = ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt", "etc/apt/apt.conf.d")
"""Files of this machine that its network may need; packages in the root overwrite some of them."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMPILE = """
from dflash.kernels.gpu.cubin import compiler, cubin
code = cubin('extern "C" __global__ void one(float *x) { *x = 1.0f; }', "one.cu", (), "sm_90")
print(compiler(), "made", len(code), "bytes for sm_90")
"""
"""What the target cuda must do without a GPU."""

NETWORK = ("PIP_CERT", "PIP_INDEX_URL", "SSL_CERT_FILE")
"""Settings of this machine that its network may need."""


def steps(text: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a target and of the targets that it builds on."""
    stages, name = dict[str, list[tuple[str, str]]](), ""
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = list(stages.get(base, [(word, base)]))
        elif word and not word.startswith("#"):
            stages[name].append((word, rest))
    yield from stages[target]


class Root:
    """A folder that becomes the root of commands, and what earlier instructions have set."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.user, self.place = folder, "root", "/"
        self.environment = {"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"}
        self.environment |= {name: os.environ[name] for name in NETWORK if name in os.environ}
        self.entry: list[str] = []
        self.arguments: list[str] = []

    def words(self, *words: str) -> list[str]:
        """Return the words that run a command in the root."""
        home = "/root" if self.user == "root" else f"/home/{self.user}"
        inside = ["env", "-i", f"HOME={home}", *(f"{name}={value}" for name, value in self.environment.items())]
        shell = ["sh", "-c", 'cd "$0" && exec "$@"', self.place, *words]
        return ["chroot", f"--userspec={self.user}", str(self.folder), *inside, *shell]

    def execute(self, word: str, rest: str) -> None:
        """Do what an instruction says."""
        match word:
            case "FROM":
                suite = rest.partition(":")[2].removesuffix("-slim")
                if not (self.folder / "etc" / "debian_version").exists():
                    run(["debootstrap", "--variant=minbase", suite, str(self.folder)])
            case "RUN":
                for name in SHARED:
                    share(Path("/", name), self.folder / name)
                run(self.words("sh", "-c", rest))
            case "COPY":
                copied = subprocess.run(["git", "ls-files", "-z"], cwd=SOURCES, check=True, capture_output=True, text=True)
                for name in filter(None, copied.stdout.split("\0")):
                    if is_sent(name):
                        to = self.folder / "src" / name
                        to.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(SOURCES / name, to)
            case "ENV":
                self.environment |= dict(each.split("=", 1) for each in shlex.split(rest))
            case "USER":
                self.user = rest
            case "WORKDIR":
                self.place = rest
            case "ENTRYPOINT":
                self.entry = json.loads(rest)
            case "CMD":
                self.arguments = json.loads(rest)
            case "EXPOSE":
                pass
            case _:
                raise SystemExit(f"{word}: no such step is known here")


def is_sent(name: str) -> bool:
    """Return True if `.dockerignore` lets a file be copied."""
    lines = (SOURCES / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return any(line[0] == "!" and (name == line[1:] or name.startswith(line[1:] + "/")) for line in lines)


def share(here: Path, there: Path) -> None:
    """Copy a file or folder of this machine, if there is one."""
    if here.is_dir():
        shutil.copytree(here, there, dirs_exist_ok=True)
    elif here.exists():
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(here, there)


def run(words: list[str]) -> None:
    """Run a command; end this program if it fails."""
    print("+", shlex.join(words)[:200], flush=True)
    if subprocess.run(words, check=False).returncode:
        raise SystemExit(f"failed: {shlex.join(words)}")


def ask(root: Root) -> None:
    """Start the server as the image would, and ask it for a completion."""
    words = root.words(*root.entry, *root.arguments, "--port", PORT)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            for line in server.stderr:
                print(line, end="")
                if line.startswith("dflash: http://"):
                    break
            else:
                raise SystemExit(f"the server has ended: {server.wait()}")
            body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{PORT}/v1/chat/completions", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=600) as answer:
                print(json.load(answer)["usage"])
        finally:
            server.terminate()


def main() -> None:
    """Execute the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--root", type=Path, help="new folder, or one with a Debian root (one that is removed afterwards)")
    arguments = parser.parse_args()
    if os.geteuid():
        sys.exit("this must run as root: it calls debootstrap and chroot")
    with tempfile.TemporaryDirectory() as spare:
        root = Root(arguments.root or Path(spare) / "root")
        for word, rest in steps((SOURCES / "Dockerfile").read_text(encoding="utf-8"), arguments.target):
            print(word, rest, flush=True)
            root.execute(word, rest)
        run(root.words("dflash", "info", "demo"))
        if arguments.target == "cuda":
            run(root.words("python", "-c", COMPILE))
        ask(root)


if __name__ == "__main__":
    main()
