"""Nothing that only some systems have is needed to import dflash and to generate a text."""

from python_run import run_python

OTHER_SYSTEM = """
import importlib, logging.handlers, mmap, multiprocessing, os, pathlib, signal, socket, subprocess, sys, tempfile, uuid
import gguf, h11, huggingface_hub, jinja2.sandbox, llguidance, numba, prometheus_client, tokenizers, tqdm
import starlette.applications, starlette.middleware, starlette.responses, starlette.routing, uvicorn.protocols.http.h11_impl

for name in ("fcntl", "grp", "pty", "pwd", "readline", "resource", "termios", "tty"):
    sys.modules[name] = None
everywhere = "O_RDONLY O_WRONLY O_RDWR O_CREAT O_EXCL O_TRUNC O_APPEND SIGINT SIGTERM SIGABRT SIGSEGV".split()
for name in dir(os):
    if name.startswith("O_") and name not in everywhere:
        delattr(os, name)
for name in dir(signal):
    if name.startswith("SIG") and name.isupper() and "_" not in name and name not in everywhere:
        delattr(signal, name)
for name in dir(mmap):
    if name.startswith(("MADV", "MAP_", "PROT_")):
        delattr(mmap, name)
for module, names in {
    os: "chown fchmod fork geteuid getloadavg getuid killpg mkfifo nice posix_fadvise pread pwrite register_at_fork "
        "sched_getaffinity sched_setaffinity sendfile setsid statvfs sysconf uname wait4",
    signal: "alarm pthread_kill pthread_sigmask setitimer sigwait",
    socket: "AF_UNIX SO_REUSEPORT recv_fds send_fds",
}.items():
    for name in names.split():
        delattr(module, name)

import dflash

root, missing = pathlib.Path(dflash.__file__).parent, []
for path in sorted(root.rglob("*.py")):
    name = ".".join(("dflash", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
    if name.startswith("dflash.serve.ray") or name.endswith(("__main__", "grammar.checking.program")):
        continue  # needs Ray; would run; runs in a fork
    try:
        importlib.import_module(name)
    except ImportError as error:
        if error.name.partition(".")[0] != "cupy":
            missing.append((name, error))
assert not missing, missing
with dflash.load("demo", device="cpu", threads=1, context=512) as lm:
    assert lm.generate("import os", max_tokens=4, strategy="dflash").usage.completion_tokens == 4
    assert lm.generate("import os", max_tokens=4, regex="a|b").text in ("a", "b")
"""


def test_what_only_linux_has_is_not_needed():
    run_python("-W", "ignore", "-c", OTHER_SYSTEM)
