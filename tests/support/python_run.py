"""Processes of Python that tests run to their end."""

import os
import subprocess
import sys

from hang_guard import GUARD


def run_python(*words, check=True, env=(), **settings):
    """Run Python with arguments, and variables of `env` beside those of this process; returns it with its output as text."""
    settings = {"timeout": GUARD, "env": {**os.environ, **dict(env)}, **settings}
    done = subprocess.run([sys.executable, *map(str, words)], check=False, capture_output=True, text=True, **settings)
    assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done
