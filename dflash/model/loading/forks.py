"""Refusal to run kernels in a fork of a process that has run some: its threads and its CUDA context do not survive."""

import os

from dflash.errors import DFlashError

_processes: list[int] = []


def check_fork(loaded_in: int | None = None) -> None:
    """Raise an error if this process is a fork of one that has loaded a model; otherwise note that it loads one.

    loaded_in: process that has loaded the model to be used; None to load another one.
    """
    if loaded_in is None and not _processes:
        _processes.append(os.getpid())
    first = _processes[0] if loaded_in is None else loaded_in
    if os.getpid() != first:
        raise DFlashError(
            f"process {first} has loaded a model and this is a fork of it, in which kernels can't run; start processes with "
            'multiprocessing.get_context("spawn") and load the model in each'
        )
