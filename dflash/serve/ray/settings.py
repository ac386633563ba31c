"""Settings of the deployments: arguments of the application, or environment variables."""

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Self

from dflash.cli.serve import check_numbers
from dflash.cli.serve_arguments import parse
from dflash.errors import RequestError

PREFIX = "DFLASH_RAY_"
"""Prefix of the environment variables: ``DFLASH_RAY_NUM_GPUS`` sets `num_gpus`."""

_ELSEWHERE = {
    "host": "Ray's proxies listen: set http_options in the configuration of Serve",
    "port": "Ray's proxies listen: set http_options in the configuration of Serve",
    "grace": "set drain_seconds",
    "debug_log": "replicas can't share the file",
}
"""Options of the server that are refused here, and what to set in their place."""


@dataclass(frozen=True, slots=True)
class RaySettings:
    """Settings of the deployments. Each is an argument of the application or an environment variable, see `PREFIX`.

    options: options of ``python -m dflash.serve``, as ``"--sequences 16 --strategy mtp:3"``.
    max_replicas: the most replicas; with more than `replicas` their number follows the load.
    target_requests: open requests for each replica that autoscaling aims at; 0 is the number of ``--sequences``.
    ingress_replicas: processes that read requests and choose replicas. Each knows only the prompts that it has routed
        itself.
    accept_seconds: seconds for a replica to accept a request; then the client gets 503.
    drain_seconds: seconds that open requests of a replica may take when it is replaced or removed.
    min_share, balance_absolute, balance_ratio, max_blocks: see `PrefixAffinity`; `balance_absolute` 0 is twice the number of
        ``--sequences``, at most 64.
    version: any text: another one replaces all replicas, a few at a time.
    """

    model: str = "demo"
    options: str = ""
    replicas: int = 1
    max_replicas: int = 0
    target_requests: float = 0.0
    num_gpus: float = 1.0
    num_cpus: float = 1.0
    ingress_replicas: int = 1
    accept_seconds: float = 120.0
    drain_seconds: float = 600.0
    min_share: float = 0.3
    balance_absolute: float = 0.0
    balance_ratio: float = 1.5
    max_blocks: int = 8192
    version: str = ""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> Self:
        """Read settings; an argument takes precedence over a variable."""
        kinds = {each.name: type(each.default) for each in fields(cls)}
        unknown = sorted(set(arguments) - set(kinds))
        if unknown:
            raise RequestError(f"{unknown[0]}: there is no such setting; known are {', '.join(kinds)}")
        variables = {name: environment[PREFIX + name.upper()] for name in kinds if PREFIX + name.upper() in environment}
        given = {name: _converted(name, value, kinds[name]) for name, value in {**variables, **arguments}.items()}
        settings = cls(**given)
        settings._check()
        return settings

    @property
    def words(self) -> list[str]:
        """Arguments of ``python -m dflash.serve``."""
        return [self.model, *shlex.split(self.options)]

    @property
    def server(self) -> argparse.Namespace:
        """Options of the server, parsed."""
        try:
            arguments, plain = parse(self.words), parse([])
        except SystemExit:
            raise RequestError(f"options: {self.options!r} is not valid for python -m dflash.serve") from None
        for name, reason in _ELSEWHERE.items():
            if getattr(arguments, name) != getattr(plain, name):
                raise RequestError(f"options: --{name.replace('_', '-')} has no meaning here: {reason}")
        check_numbers(arguments)
        return arguments

    def _check(self) -> None:
        at_least_one = ("replicas", "ingress_replicas", "accept_seconds", "drain_seconds", "balance_ratio", "max_blocks")
        for name, value in ((each.name, getattr(self, each.name)) for each in fields(self)):
            least = 1 if name in at_least_one else 0
            if not isinstance(value, str) and not least <= value < inf:
                raise RequestError(f"{name}: must be a number of at least {least}, got {value:g}")
        if self.min_share > 1:
            raise RequestError(f"min_share: must be 0 to 1, got {self.min_share:g}")
        if 0 < self.max_replicas < self.replicas:
            raise RequestError(f"max_replicas: must be at least replicas, {self.replicas}, got {self.max_replicas}")
        self.server  # noqa: B018 - raises


def _converted(name: str, value: object, kind: type) -> Any:
    try:
        if kind is str or isinstance(value, str):
            return kind(value)
        if isinstance(value, bool) or kind(value) != value:
            raise ValueError
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        words = "an integer" if kind is int else "a number"
        raise RequestError(f"{name}: must be {words}, got {value!r}") from None
