"""Parts of `dflash.serve.ray` that need no Ray, and the error without it."""

from python_run import run_python


def test_the_error_without_ray_says_what_to_install():
    code = "import sys; sys.modules['ray'] = None; import dflash.serve.routing.relay; import dflash.serve.ray"
    found = run_python("-c", code, check=False)
    assert found.returncode == 1
    words = "dflash.errors.DFlashError: dflash.serve.ray needs ray: pip install 'dflash-gguf[ray]'"
    assert found.stderr.splitlines()[-1] == words
