"""Number of GPUs that tests can use."""


def n_devices():
    """0 without a driver or CuPy."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    except Exception:
        return 0
