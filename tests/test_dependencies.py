"""Lower bounds of dependencies leave out versions with published security advisories."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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
