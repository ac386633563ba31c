"""Number and kind of the GPUs that tests can use."""


def n_devices():
    """0 without a driver or CuPy."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    except Exception:
        return 0


def is_emulated():
    """True if the GPUs are those of `tests/emulator`, which are slow."""
    try:
        import cupy

        return cupy.__version__.endswith("emulated")
    except ImportError:
        return False
