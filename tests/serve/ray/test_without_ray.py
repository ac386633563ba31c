"""Parts of `dflash.serve.ray` that need no Ray, and the error without it."""

import subprocess
import sys

from hang_guard import GUARD


def test_the_error_without_ray_says_what_to_install():
    code = "import sys; sys.modules['ray'] = None; import dflash.serve.routing.relay; import dflash.serve.ray"
    found = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=GUARD)
    assert found.returncode == 1
    words = "dflash.errors.DFlashError: dflash.serve.ray needs ray: pip install 'dflash-gguf[ray]'"
    assert found.stderr.splitlines()[-1] == words
