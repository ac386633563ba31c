"""`python -m dflash.serve`: serve a model with OpenAI's and Anthropic's HTTP APIs."""

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from dflash.cli.model_arguments import add_context, add_draft, add_model, check_draft, draft_settings
from dflash.errors import DFlashError, EngineFailed, RequestError
from dflash.model.loading.hub import PACKAGED


def main(arguments: Sequence[str] | None = None) -> int:
    """Load a model and serve it until a signal ends the server.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command-line arguments without the program's name; those of this process if None.

    Returns
    -------
    int
        0 after a shutdown, 1 after an error of dflash or a failure of the engine, 130 after Ctrl-C while loading.
    """
    parsed = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        _serve(parsed)
    except DFlashError as error:
        print(f"dflash: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(arguments: argparse.Namespace) -> None:
    try:
        from dflash.serve.app import build_app
        from dflash.serve.server import Server
    except ImportError as error:
        raise DFlashError(f"the server needs {error.name}: pip install 'dflash[serve]'") from error
    from dflash.generation.load import start
    from dflash.generation.recovery.names import settle
    from dflash.serve.access import is_loopback, local_hosts, read_key
    from dflash.serve.draft_check import prepare_draft
    from dflash.serve.endpoints import Backend
    from dflash.serve.health import MAX_CLOSING
    from dflash.serve.limits import MAX_GRACE, MAX_WAITING, Limits
    from dflash.serve.strategy_choice import Defaults, allowed, named

    if not 0 <= arguments.port <= 65535:
        raise RequestError(f"--port: must be 0 to 65535, got {arguments.port}")
    if (arguments.prefix_cache_mib or 0) < 0:
        raise RequestError(f"--prefix-cache-mib: must be at least 0, got {arguments.prefix_cache_mib}")
    if (arguments.prefix_cache_disk_mib or 0) < 0:
        raise RequestError(f"--prefix-cache-disk-mib: must be at least 0, got {arguments.prefix_cache_disk_mib}")
    if not 0 <= arguments.grace <= MAX_GRACE:
        raise RequestError(f"--grace: must be 0 to {MAX_GRACE} seconds, got {arguments.grace:g}")
    key = read_key(arguments.api_key, arguments.api_key_file)
    if key is None and not is_loopback(arguments.host):
        print(
            f"dflash: --host {arguments.host} without --api-key: every client that reaches this address can use the server",
            file=sys.stderr,
        )
    recover = settle(arguments.recover)
    settings = draft_settings(arguments)
    strategy = named(arguments.strategy, arguments.draft, **settings)
    words = allowed(arguments.allow_strategies)
    if words is not None:
        check_draft(arguments, [arguments.strategy or ("dflash" if arguments.draft else "plain"), *words])
    defaults = Defaults(strategy, arguments.draft, settings, recover, words)
    print(f"dflash: loading {arguments.model}", file=sys.stderr)
    loaded, engine_thread = start(
        arguments.model,
        device=arguments.device,
        threads=arguments.threads,
        context=arguments.context,
        sequences=arguments.sequences,
        kv=arguments.kv,
        max_waiting=MAX_WAITING,
        prefix_cache=True if arguments.prefix_cache_mib is None else arguments.prefix_cache_mib << 20,
        prefix_cache_folder=arguments.prefix_cache_folder,
        prefix_cache_disk=None if arguments.prefix_cache_disk_mib is None else arguments.prefix_cache_disk_mib << 20,
        prefix_cache_exact=not arguments.prefix_cache_inexact,
    )
    names = arguments.model_name or [default_name(arguments.model)]
    try:
        engine_thread.prepare(defaults.strategy)
        prepare_draft(engine_thread, defaults)
        limits = Limits(loaded.model.config.context)
        backend = Backend(engine_thread, loaded.tokenizer, loaded.template, names, defaults, limits)
        hosts = local_hosts(arguments.host, key)
        app = build_app(backend, api_key=key, hosts=hosts, keep_billing_header=arguments.keep_billing_header)
        gc.collect()
        gc.freeze()  # keeps full collections short: they stall all streams while they visit the objects of the model
        Server(app, engine_thread, host=arguments.host, port=arguments.port, grace=arguments.grace).run()
    except KeyboardInterrupt:
        pass  # uvicorn has shut down and raises the signal again
    finally:
        engine_thread.close(MAX_CLOSING)
    if engine_thread.error is not None:
        raise EngineFailed(
            f"the server has stopped because its engine failed: {engine_thread.error}"
        ) from engine_thread.error


def default_name(model: str) -> str:
    """Return the default model name for clients: a file name without suffix, a repository without ``hf:``."""
    if model in PACKAGED:
        return model
    return model.removeprefix("hf:") if model.startswith("hf:") else Path(model).stem


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dflash.serve", description="serve a model with OpenAI's and Anthropic's HTTP APIs"
    )
    add_model(parser, default="demo")
    add_context(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000); 0 chooses a free one")
    parser.add_argument(
        "--model-name", action="append", metavar="NAME", help="name of the model in the API; may be repeated"
    )
    parser.add_argument("--api-key", metavar="KEY", help="key that requests must carry (or set DFLASH_API_KEY)")
    parser.add_argument(
        "--api-key-file", metavar="FILE", help="file that holds the key, which keeps it out of process lists"
    )
    parser.add_argument(
        "--keep-billing-header",
        action="store_true",
        help="keep Claude Code's x-anthropic-billing-header line in prompts, which differs between sessions (default: drop)",
    )
    parser.add_argument("--sequences", type=int, default=8, metavar="N", help="sequences decoded at the same time (8)")
    parser.add_argument(
        "--prefix-cache-mib",
        type=int,
        metavar="N",
        help="MiB of states saved for later prompts with the same beginning (an eighth of the free memory); 0 is none",
    )
    parser.add_argument(
        "--prefix-cache-folder",
        metavar="FOLDER",
        help="folder for states that leave the memory of the prefix cache (none)",
    )
    parser.add_argument(
        "--prefix-cache-disk-mib", type=int, metavar="N", help="MiB of the files in --prefix-cache-folder (16384)"
    )
    parser.add_argument(
        "--prefix-cache-inexact",
        action="store_true",
        help="use saved states at any boundary; on a GPU the last bits of logits may change",
    )
    parser.add_argument("--strategy", metavar="NAME", help="strategy of requests that name none (plain)")
    add_draft(parser)
    parser.add_argument(
        "--allow-strategies",
        metavar="NAME,...",
        help="strategies that requests may name, as plain,lookup,dflash; none: requests may not choose (default: all)",
    )
    parser.add_argument(
        "--recover",
        metavar="NAME,...",
        help="recoveries of requests that name none, as loop,min:20; info lists all "
        "(default: from DFLASH_STALL_TOOL_PREFIX and DFLASH_MIN_TOKENS, else none)",
    )
    parser.add_argument(
        "--grace", type=float, default=10, metavar="S", help="seconds that open requests may take at shutdown (10)"
    )
    return parser
