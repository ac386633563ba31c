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


class DFlashError(Exception):
    """Root of the tree: catch this to catch all of it."""


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
    """The chat template refused the messages, or the model has none."""


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
