"""All errors that dflash raises on purpose.

::

    DFlashError
    ├── ModelError            a model can't be used
    │   ├── NotFound          no such file, name or repository
    │   ├── FormatError       a file is damaged or is not what it claims to be (also a ValueError)
    │   └── Unsupported       a valid file of a kind that dflash does not support
    ├── RequestError          an argument or a field of a request is not valid (also a ValueError)
    │   ├── ContextOverflow   the prompt is longer than the model's context
    │   └── TemplateError     the chat template refused the messages
    ├── PoolExhausted         no KV pages or recurrent slots are free; a later attempt may succeed
    ├── QueueFull             too many sequences wait to start; a later attempt may succeed
    ├── Cancelled             the request was cancelled before it was finished
    ├── EngineFailed          the engine stopped after a failure and accepts no more requests
    ├── KernelError           a kernel was given invalid arrays, or failed on the device
    │   └── DeviceLost        the GPU failed and can be used again only by a new process
    ├── OutOfMemory           the GPU or the machine has too little memory for the model or its workspace
    └── DownloadError         a hub could not be reached or answered with an error
"""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import PurePath


class DFlashError(Exception):
    """Base class of all errors of dflash.

    Parameters
    ----------
    *args : object
        The message.
    path : str or path, optional
        File, folder or model that the error is about. The string of the error begins with it.

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
    """Return the message of an error with file names in place of full paths.

    Parameters
    ----------
    error : BaseException
        Error whose paths are shortened, together with the paths of its causes.
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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean X?)"`` with the known word that is most like `word`; empty if none is like it."""
    spelled = {each.lower(): each for each in known if each != word}
    found = get_close_matches(word.lower()[:80], spelled, n=1, cutoff=0.6)
    return f" (did you mean {spelled[found[0]]}?)" if found else ""


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
    """A valid file of a kind that dflash does not support."""


class RequestError(DFlashError, ValueError):
    """An argument or a field of a request is not valid; the message names it."""


class ContextOverflow(RequestError):
    """The prompt is longer than the context.

    Parameters
    ----------
    message : str
    n_tokens : int, optional
        Tokens of the prompt; a lower bound if it was not tokenized to its end.
    context : int, optional
        Maximum tokens.
    """

    def __init__(self, message: str, *, n_tokens: int | None = None, context: int | None = None) -> None:
        super().__init__(message)
        self.n_tokens, self.context = n_tokens, context


class TemplateError(RequestError):
    """The chat template refused the messages, or the model has none.

    Parameters
    ----------
    message : str
    argument : str
        Argument of `ChatTemplate.render` that caused the error.
    """

    def __init__(self, message: str, *, argument: str = "messages") -> None:
        super().__init__(message)
        self.argument = argument


class PoolExhausted(DFlashError):
    """No KV pages or recurrent slots are free now."""


class QueueFull(DFlashError):
    """Too many sequences wait to start."""


class Cancelled(DFlashError):
    """The request was cancelled before it was finished."""


class EngineFailed(DFlashError):
    """The engine stopped after a failure and accepts no more requests."""


class KernelError(DFlashError):
    """A kernel was given invalid arrays, or it failed on the device."""


class DeviceLost(KernelError):
    """The GPU failed and can be used again only by a new process."""


class OutOfMemory(DFlashError):
    """The GPU or the machine has too little memory for the model or its workspace."""


class DownloadError(DFlashError):
    """A hub could not be reached, or it answered with an error."""
