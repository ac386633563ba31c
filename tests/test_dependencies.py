"""Bounds of dependencies: no versions with published security advisories, and exact ones for development within them."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
GROUPS = {"": PROJECT["dependencies"]} | PROJECT["optional-dependencies"]
NEWEST_WITH_AN_ADVISORY = [
    ("", "jinja2", "3.1.5"),  # CVE-2025-27516
    ("", "tqdm", "4.66.2"),  # CVE-2024-34062
    ("serve", "starlette", "1.0.0"),
    ("serve", "h11", "0.15.0"),  # CVE-2025-43859; comes with uvicorn, whose own bound allows it
    ("notebooks", "jupyterlab", "4.4.7"),  # CVE-2025-59842
]


@pytest.mark.parametrize(("group", "name", "version"), NEWEST_WITH_AN_ADVISORY)
def test_versions_with_advisories_are_left_out(group, name, version):
    found = [requirement for requirement in map(Requirement, GROUPS[group]) if requirement.name == name]
    assert len(found) == 1
    assert not found[0].specifier.contains(version)


CONSTRAINTS = (Path(__file__).parent.parent / "constraints.txt").read_text()
PINS = [Requirement(line) for line in CONSTRAINTS.splitlines() if line and not line.startswith("#")]
LOCKED = re.findall(r"--extra (\w+)", CONSTRAINTS.splitlines()[1])


def direct(extra):
    """Requirements of an extra, those of the extras that it refers to included."""
    for requirement in map(Requirement, GROUPS[extra]):
        if requirement.name == PROJECT["name"]:
            for other in requirement.extras:
                yield from direct(other)
        else:
            yield requirement


def test_the_head_of_the_constraints_holds_the_command_and_no_address():
    assert re.fullmatch(r"#    uv pip compile pyproject\.toml --universal [\w .-]+", CONSTRAINTS.splitlines()[1])
    assert set(LOCKED) >= {"dev", "notebooks"}
    assert "//" not in CONSTRAINTS


@pytest.mark.parametrize("extra", ["", *LOCKED])
def test_the_constraints_lie_within_the_bounds_for_users(extra):
    for requirement in direct(extra):
        pins = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(requirement.name)]
        assert pins, f"{requirement} is new: run `make constraints`"
        for pin in pins:
            (exact,) = pin.specifier
            assert exact.operator == "=="
            assert requirement.specifier.contains(exact.version), f"{pin}, wanted {requirement}: run `make constraints`"


@pytest.mark.parametrize("extra", sorted(GROUPS))
def test_every_requirement_has_a_lower_bound(extra):
    assert all(any(each.operator in (">=", "==") for each in requirement.specifier) for requirement in direct(extra))
