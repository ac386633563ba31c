"""Resolve the name of a model to a local file: a path, the packaged demo, or a repository of the Hugging Face hub."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from glob import escape
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from dflash.errors import DFlashError, DownloadError, NotFound, did_you_mean
from dflash.model.gguf.choose import choose_files
from dflash.model.gguf.header import quoted

PACKAGED = {"demo": "demo-Q4_K_M.gguf", "demo-draft": "draft-Q4_K_M.gguf"}
"""File names of the models in the package, by name."""

Choose = Callable[[Iterable[str]], list[str]]
"""Selects the files of one model from those of a repository; the first returned file is the one to open."""

_FOLDER = (".json", ".safetensors")
_MAIN = "main"
_REVISION = re.compile(r"(?!.*(?:\.\.|//|/\.|\.lock(?:/|$)))[A-Za-z0-9_][\w.+/-]{0,199}(?<![./])", re.ASCII)
"""Names that git allows for branches, tags and commits and that are safe in a path."""

_HUB = "hf:"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@[^\s:]+)?(?::[^\s:]+)?", re.ASCII)
_MAX_NAMES = 10_000
"""Names of a folder among which the one that was meant is searched."""

_PART = re.compile(r"-\d+-of-\d+\.gguf$")
_DATA = Path(__file__).parents[2] / "data"


class Origin(NamedTuple):
    """Where a file came from: repository, revision, and the names of all its files."""

    repo: str
    revision: str
    files: tuple[str, ...]

    @property
    def place(self) -> str:
        """``org/repo@revision``."""
        return f"{self.repo}@{self.revision}"


_origins: dict[Path, Origin] = {}


def origin_of(path: Path) -> Origin | None:
    """Return where a file was resolved from; None if it is not from the hub."""
    return _origins.get(path)


def resolve(
    name: str | os.PathLike[str],
    *,
    folders: bool = False,
    progress: type | None = None,
    endpoint: str | None = None,
    cache_dir: str | Path | None = None,
) -> Path:
    """Find a model, downloading it if it is on the hub and not in the cache.

    name: a GGUF file; ``demo`` or ``demo-draft``; or ``hf:org/repo@revision:quant``, where ``hf:`` may be left out unless
        there is a file or folder of that name. The revision is a branch, tag or commit, by default the current ``main``;
        only a commit never changes. The quantization is a name in upper or lower case (``hf:org/repo:q4_k_m``) or a file
        name; by default Q4_K_M, if the repository has it.
    folders: whether a repository without GGUF files may hold ``config.json`` and safetensors files, as draft models often
        do.
    progress: a class like `tqdm.tqdm` that shows the progress of the download; by default the hub client's own.

    The hub client resumes downloads, caches files and shows progress. If the hub can't be reached, a model in the cache is
    used.
    """
    repository = repository_of(name) if isinstance(name, str) else None
    name = os.fspath(name)
    if name in PACKAGED:
        path = _DATA / PACKAGED[name]
    elif repository is not None:
        place, _, quant = repository.partition(":")
        repo, revision = _split_revision(place)
        choose = partial(choose_files, place, quant=quant or None, folders=folders)
        try:
            return _from_hub(repo, revision, choose, progress=progress, endpoint=endpoint, cache_dir=cache_dir)
        except (NotFound, DownloadError) as error:
            if name.startswith(_HUB):
                raise
            raise type(error)(f"{error}; there is no file or folder of that name, either") from error
    else:
        path = Path(name).expanduser()
    try:
        if path.exists():
            return path
    except OSError as error:
        raise NotFound(f"can't be read: {error.strerror}", path=quoted(str(path))) from error
    near = did_you_mean(path.name, [*PACKAGED, *_names_beside(path)])
    raise NotFound(f"there is no such file{near}; a name is a path, 'demo' or 'hf:org/repo@revision:quant'", path=path)


def repository_of(name: str) -> str | None:
    """Return the repository of a name, with its revision and quantization, if it names one on the hub.

    A name as ``org/repo`` does so without ``hf:`` unless it ends like a model file, or there is a file or folder of that
    name.
    """
    if name.startswith(_HUB):
        return name.removeprefix(_HUB)
    if _REPOSITORY.fullmatch(name) is None or name.endswith((".gguf", *_FOLDER)):
        return None
    return None if os.path.lexists(name) else name


def _names_beside(path: Path) -> list[str]:
    """Return names in the folder of a file."""
    try:
        with os.scandir(path.parent) as entries:
            return [entry.name for entry in islice(entries, _MAX_NAMES)]
    except OSError:
        return []


def stamp(name: str) -> tuple[tuple[str, int, int], ...] | None:
    """Return a fingerprint of the local files of a model, to detect changes.

    Returns: name, modification time in nanoseconds and bytes of each file; empty if there is none. None for a model on the
        hub, or one that is yet to be found, whose state is not known without a request.
    """
    if repository_of(name) is not None or name == "auto":
        return None
    path = _DATA / PACKAGED[name] if name in PACKAGED else Path(name).expanduser()
    if path.is_dir() or path.suffix in _FOLDER:
        folder = path if path.is_dir() else path.parent
        files = [file for suffix in _FOLDER for file in folder.glob(f"*{suffix}")]
    else:
        files = [path, *path.parent.glob(escape(_PART.sub("", path.name)) + "-*-of-*.gguf")]
    found = []
    for file in sorted(set(files)):
        with suppress(OSError):
            about = file.stat()
            found.append((file.name, about.st_mtime_ns, about.st_size))
    return tuple(found)


def _split_revision(place: str) -> tuple[str, str]:
    """Split ``org/repo@revision`` and check the revision, which is ``main`` by default."""
    repo, at, revision = place.partition("@")
    if at and not _REVISION.fullmatch(revision):
        raise NotFound(
            f"hf:{place!r:.120}: {revision!r:.80} can't be a revision, wanted a branch, tag or commit as in hf:org/repo@v1.0"
        )
    return repo, revision or _MAIN


def _from_hub(
    repo: str, revision: str, choose: Choose, *, progress: type | None, endpoint: str | None, cache_dir: str | Path | None
) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    try:
        with _hub_errors(repo, revision):
            info = HfApi(endpoint=endpoint).model_info(repo, revision=None if revision == _MAIN else revision)
            files = [file.rfilename for file in info.siblings or ()]
    except DownloadError:
        path = _from_cache(repo, revision, choose, cache_dir)
        if path is None:
            raise
        return path
    chosen = choose(files)
    with _hub_errors(repo, revision):
        folder = snapshot_download(
            repo,
            revision=revision,
            allow_patterns=[escape(file) for file in chosen],
            tqdm_class=progress,
            endpoint=endpoint,
            cache_dir=cache_dir,
        )
        missing = [file for file in chosen if not Path(folder, file).is_file()]
        if missing:
            raise DownloadError(f"{repo}: {missing[0]} was not downloaded")
    return _remembered(Path(folder, chosen[0]), Origin(repo, revision, tuple(files)))


def _from_cache(repo: str, revision: str, choose: Choose, cache_dir: str | Path | None) -> Path | None:
    """Return the path of a model of this revision in the cache; None if it is not there."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cached = [entry for entry in scan_cache_dir(cache_dir).repos if entry.repo_id == repo]
    except CacheNotFound:
        return None
    snapshots = [snapshot for entry in cached for snapshot in entry.revisions]
    for snapshot in snapshots:
        if revision not in snapshot.refs and revision != snapshot.commit_hash:
            continue
        files = [file.file_path.relative_to(snapshot.snapshot_path).as_posix() for file in snapshot.files]
        try:
            return _remembered(snapshot.snapshot_path / choose(files)[0], Origin(repo, revision, tuple(files)))
        except NotFound:
            continue
    return None


def _remembered(path: Path, origin: Origin) -> Path:
    _origins[path] = origin
    return path


@contextmanager
def _hub_errors(repo: str, revision: str) -> Iterator[None]:
    """Translate exceptions of the hub client to errors of dflash."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except DFlashError:
        raise
    except GatedRepoError as error:
        raise DownloadError(f"{repo}: accept its terms on the hub and log in with `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise NotFound(f"{repo}: there is no such repository, or it is private and needs `hf auth login`") from error
    except RevisionNotFoundError as error:
        raise NotFound(f"{repo}: there is no branch, tag or commit {revision!r:.80}") from error
    except OfflineModeIsEnabled as error:
        raise DownloadError(f"{repo}: is not in the cache, and HF_HUB_OFFLINE keeps the hub client offline") from error
    except HFValidationError as error:
        raise NotFound(f"{repo!r} is no repository, wanted org/repo: {_first_line(error)}") from error
    except Exception as error:
        raise DownloadError(f"{repo}: the hub could not be read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
