"""`python -m dflash.serve`: serve a model with OpenAI's and Anthropic's HTTP APIs."""

import argparse
import gc
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.cli.arguments import strategy_of
from dflash.cli.model_arguments import check_draft, draft_settings, load_settings
from dflash.cli.serve_arguments import parse, parser, sampling_defaults
from dflash.distribution import needed
from dflash.errors import DFlashError, EngineFailed, RequestError
from dflash.model.loading.hub import PACKAGED, repository_of

if TYPE_CHECKING:
    import socket

    from dflash.decode.verifiers import Verifier
    from dflash.serve.admin.debug_log import DebugLog
    from dflash.serve.endpoints import Backend
    from dflash.serve.strategy_choice import Defaults


def main(arguments: Sequence[str] | None = None) -> int:
    """Load a model and serve it until a signal ends the server. Arguments and result are those of `dflash.__main__.main`."""
    parsed = argparse.Namespace()
    try:
        parsed = parse(sys.argv[1:] if arguments is None else arguments)
        _serve(parsed)
    except DFlashError as error:
        print(f"dflash: {parser().located(parsed, error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(arguments: argparse.Namespace) -> None:
    """Check the arguments, open what the server needs, then load the model and serve it."""
    with needed("the server", "serve"):
        from dflash.serve import server  # noqa: F401 - all that the server imports, before a model is loaded
        from dflash.serve.admin.debug_log import DebugLog
        from dflash.serve.startup.freed_memory import return_freed_memory
        from dflash.serve.startup.sockets import listening
    from dflash.serve.access import is_loopback, read_key

    return_freed_memory()
    check_numbers(arguments)
    key = read_key(arguments.api_key, arguments.api_key_file)
    if key is None and not is_loopback(arguments.host):
        print(
            f"dflash: --host {arguments.host} without --api-key: every client that reaches this address can use the server",
            file=sys.stderr,
        )
    defaults = defaults_of(arguments)
    with ExitStack() as stack:
        debug_log = None
        if arguments.debug_log is not None:
            debug_log = DebugLog(arguments.debug_log, arguments.debug_log_mib << 20)
            stack.callback(debug_log.close)
        sockets = stack.enter_context(listening(arguments.host, arguments.port))
        _load_and_run(arguments, defaults, key, sockets, debug_log)


def check_numbers(arguments: argparse.Namespace) -> None:
    """Raise `RequestError` for an option that is out of range."""
    from dflash.serve.limits import MAX_GRACE

    if not 0 <= arguments.port <= 65535:
        raise RequestError(f"--port: must be 0 to 65535, got {arguments.port}")
    if arguments.max_step_ms is not None and not 0 <= arguments.max_step_ms < inf:
        raise RequestError(f"--max-step-ms: must be a number of at least 0, got {arguments.max_step_ms:g}")
    for name in ("prefix_cache_mib", "prefix_cache_disk_mib", "debug_log_mib"):
        value = getattr(arguments, name)
        if (value or 0) < 0:
            raise RequestError(f"--{name.replace('_', '-')}: must be at least 0, got {value}")
    if not 0 <= arguments.request_timeout < inf:
        raise RequestError(f"--request-timeout: must be a number of at least 0, got {arguments.request_timeout:g}")
    if not 0 <= arguments.grace <= MAX_GRACE:
        raise RequestError(f"--grace: must be 0 to {MAX_GRACE} seconds, got {arguments.grace:g}")


def defaults_of(arguments: argparse.Namespace) -> "Defaults":
    """Return strategy, recoveries and sampling of requests that name none."""
    from dflash.generation.recovery.names import settle
    from dflash.serve.strategy_choice import Defaults, allowed

    recover = settle(arguments.recover)
    settings, strategy = draft_settings(arguments), strategy_of(arguments, arguments.strategy)
    words = allowed(arguments.allow_strategies)
    if words is not None:
        check_draft(arguments, [arguments.strategy or ("dflash" if arguments.draft else "plain"), *words])
    sampling = sampling_defaults(arguments)
    return Defaults(strategy, arguments.draft, settings, recover, words, sampling, verifier=strategy.verifier)


def _load_and_run(
    arguments: argparse.Namespace,
    defaults: "Defaults",
    key: str | None,
    sockets: "list[socket.socket]",
    debug_log: "DebugLog | None",
) -> None:
    from dflash.generation.progress import progress_line
    from dflash.serve.access import local_hosts
    from dflash.serve.health import MAX_CLOSING
    from dflash.serve.server import Server
    from dflash.serve.startup.loading import LoadingServer
    from dflash.serve.startup.sockets import url_of
    from dflash.serve.startup.start_lines import memory_line, ready_line

    print(f"dflash: loading {arguments.model}", file=sys.stderr)
    with ExitStack() as stack:
        with LoadingServer(sockets) as waiting, progress_line(arguments.model, shown=True) as show:

            def report(stage: str) -> None:
                waiting.report(stage)
                if show is not None:
                    show(stage)

            backend = load_backend(arguments, defaults, progress=report)
            engine_thread = backend.engine_thread
            stack.callback(engine_thread.close, MAX_CLOSING)
        app = app_of(arguments, backend, key, hosts=local_hosts(arguments.host, key), debug_log=debug_log)
        strategy = arguments.strategy or ("dflash" if arguments.draft else "plain")
        line = ready_line(
            url_of(sockets),
            name=backend.names[0],
            context=backend.limits.context,
            strategy=", ".join(filter(None, (strategy, _mark_of(defaults.verifier)))),
            has_key=key is not None,
            has_template=backend.template is not None,
        )
        print(memory_line(engine_thread.engine), file=sys.stderr)
        if not arguments.no_access_log:
            stack.enter_context(_access_log())
        gc.collect()
        gc.freeze()  # keeps full collections short: they stall all streams while they visit the objects of the model
        with suppress(KeyboardInterrupt):  # uvicorn has shut down and raises the signal again
            Server(app, engine_thread, grace=arguments.grace, ready=lambda: print(line, file=sys.stderr)).run(sockets)
    if engine_thread.error is not None:
        raise EngineFailed(
            f"the server has stopped because its engine failed: {engine_thread.error}"
        ) from engine_thread.error


def _mark_of(verifier: "Verifier") -> str:
    """Return the words for a verifier other than the default, in capitals if the output is not lossless."""
    from dflash.decode.verifiers import COUPLED

    return verifier.warning.upper() or (f"{verifier!r}" if verifier != COUPLED else "")


def load_backend(
    arguments: argparse.Namespace,
    defaults: "Defaults",
    *,
    id_prefix: str = "",
    progress: Callable[[str], None] | None = None,
) -> "Backend":
    """Load the model and start its engine thread; `progress` is given the name of each stage before it begins."""
    from dflash.decode.drafters.missing_files import strategies_without_files
    from dflash.decode.scheduling.admission import warnings_of_size
    from dflash.generation.load import start
    from dflash.model.loading.settings import LoadSettings
    from dflash.serve.admin.model_facts import ModelFacts
    from dflash.serve.draft_check import prepare_draft
    from dflash.serve.endpoints import Backend
    from dflash.serve.health import MAX_CLOSING
    from dflash.serve.limits import MAX_WAITING, Limits

    settings = load_settings(
        arguments,
        max_waiting=MAX_WAITING,
        max_step_ms=True if arguments.max_step_ms is None else arguments.max_step_ms,
        draft_budget=not arguments.fixed_drafts,
        prefix_cache=True if arguments.prefix_cache_mib is None else arguments.prefix_cache_mib << 20,
        prefix_cache_disk=None if arguments.prefix_cache_disk_mib is None else arguments.prefix_cache_disk_mib << 20,
        prefix_cache_exact=not arguments.prefix_cache_inexact,
        prefix_cache_reread=not arguments.no_prefix_cache_reread,
    )
    loaded, engine_thread = start(arguments.model, LoadSettings(**settings), progress=progress)
    defaults = replace(defaults, without_files=strategies_without_files(loaded.file))
    with ExitStack() as stack:
        stack.callback(engine_thread.close, MAX_CLOSING)
        if progress is not None:
            progress("strategy")
        engine_thread.prepare(defaults.strategy)
        list(warnings_of_size(loaded.model, defaults.strategy))  # logged
        prepare_draft(engine_thread, defaults)
        stack.pop_all()
    return Backend(
        engine_thread,
        loaded.tokenizer,
        loaded.template,
        arguments.model_name or [default_name(arguments.model)],
        defaults,
        Limits(loaded.model.config.context, arguments.request_timeout or inf),
        strict_names=arguments.strict_model,
        offered_tools_only=arguments.offered_tools_only,
        template_kwargs=arguments.template_kwargs,
        facts=ModelFacts.of(loaded),
        id_prefix=id_prefix,
    )


def app_of(
    arguments: argparse.Namespace,
    backend: "Backend",
    key: str | None,
    *,
    hosts: Collection[str] | None = None,
    debug_log: "DebugLog | None" = None,
) -> Any:  # Starlette, which only serve/ imports
    """Build the application with the options of the server; see `build_app`."""
    from dflash.serve.app import build_app

    return build_app(
        backend,
        api_key=key,
        hosts=hosts,
        keep_billing_header=arguments.keep_billing_header,
        debug_log=debug_log,
        origins=arguments.allow_origin,
    )


@contextmanager
def _access_log() -> Iterator[None]:
    """Write the access log to stderr."""
    from dflash.serve.admin.access_log import AccessLogHandler

    log, handler = logging.getLogger("dflash.access"), AccessLogHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.end()
        log.setLevel(before)


def default_name(model: str) -> str:
    """Return the default model name for clients: a file name without suffix, a repository without ``hf:``."""
    if model in PACKAGED:
        return model
    return repository_of(model) or Path(model).stem
