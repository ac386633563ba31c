"""Errors of CUDA."""


class CUDARuntimeError(RuntimeError):
    def __init__(self, status, text="an error of the emulator"):
        super().__init__(f"cudaError {status}: {text}")
        self.status = status


class CUDADriverError(CUDARuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


def check(status):
    if status:
        raise CUDARuntimeError(status)
