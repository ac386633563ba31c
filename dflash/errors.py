"""Every error that dflash raises on purpose.

::

    DFlashError
    ├── ModelError            a model can't be used
    │   ├── NotFound          no such file, name or repository
    │   ├── FormatError       a file is damaged or is not what it claims to be (also a ValueError)
    │   └── Unsupported       a sound file of a kind that dflash does not run
    ├── RequestError          a caller asked for something impossible (also a ValueError)
    │   ├── ContextOverflow   the prompt is longer than the model's context
    │   └── TemplateError     the chat template refused the messages
    ├── PoolExhausted         no KV pages or recurrent slots are free; later there may be
    ├── QueueFull             too many sessions wait to start; later there may be fewer
    ├── Cancelled             the caller went away before the work was done
    ├── EngineFailed          the engine has ended after a failure and takes no more work
    ├── KernelError           a kernel was given arrays that it can't take, or failed on the device
    │   └── DeviceLost        the GPU failed in a way that only a new process can mend
    ├── OutOfMemory           the memory of the GPU or the machine does not hold the model or its work
    └── DownloadError         a hub could not be reached or answered with an error
"""

import os
from pathlib import PurePath


class DFlashError(Exception):
    """Root of the tree: catch this to catch all of it.

    Parameters
    ----------
    *args : object
        The message.
    path : str or path, optional
        File, folder or model that the error is about. `str` of the error begins with it.

    Attributes
    ----------
    path : str or path or None
    """

    def __init__(self, *args: object, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(*args)
        self.path = path

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        return message if self.path is None else f"{self.path}: {message}"


def public_message(error: BaseException) -> str:
    """Return what an error says, with names of files in place of their paths.

    Parameters
    ----------
    error : BaseException
        Whose own paths, and those of the errors that it was raised from, are shortened.
    """
    message, seen = str(error), set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        for path in (getattr(cause, "path", None), getattr(cause, "filename", None), getattr(cause, "filename2", None)):
            if isinstance(path, str | os.PathLike) and not str(path).startswith("hf:"):
                message = _without_folders(message, str(path))
        cause = cause.__cause__ or cause.__context__
    return message


def _without_folders(message: str, path: str) -> str:
    name, folder = PurePath(path).name, str(PurePath(path).parent)
    message = message.replace(path, name) if name else message
    return message.replace(folder + os.sep, "") if PurePath(path).is_absolute() and folder != os.sep else message


class ModelError(DFlashError):
    """A model can't be used."""


class NotFound(ModelError, FileNotFoundError):
    """There is no such file, name or repository."""


class FormatError(ModelError, ValueError):
    """A file is damaged or is not what it claims to be."""


class Unsupported(ModelError):
    """A sound file of a kind that dflash does not run."""


class RequestError(DFlashError, ValueError):
    """A caller asked for something impossible; the message names the argument."""


class ContextOverflow(RequestError):
    """The prompt is longer than the context."""


class TemplateError(RequestError):
    """The chat template refused the messages, or the model has none.

    Parameters
    ----------
    message : str
    argument : str
        Which argument of `ChatTemplate.render` is to blame.
    """

    def __init__(self, message: str, *, argument: str = "messages") -> None:
        super().__init__(message)
        self.argument = argument


class PoolExhausted(DFlashError):
    """No KV pages or recurrent slots are free now."""


class QueueFull(DFlashError):
    """Too many sessions wait to start."""


class Cancelled(DFlashError):
    """The caller went away before the work was done."""


class EngineFailed(DFlashError):
    """The engine has ended after a failure and takes no more work."""


class KernelError(DFlashError):
    """A kernel was given arrays that it can't take, or it failed on the device."""


class DeviceLost(KernelError):
    """The GPU failed in a way that only a new process can mend."""


class OutOfMemory(DFlashError):
    """The memory of the GPU or the machine does not hold the model or what it works on."""


class DownloadError(DFlashError):
    """A hub could not be reached, or it answered with an error."""
