"""Every number type that changes results shows wherever a model is described."""

from dataclasses import asdict, fields, replace
from types import SimpleNamespace

import pytest

import dflash
from dflash.decode.prefix_cache.disk import identity
from dflash.evaluation import environment
from dflash.evaluation.server_connection import ServerConnection
from dflash.evaluation.study import replay
from dflash.evaluation.study.runners.server import ServerRunner
from dflash.model.loading.target import kernels_of
from dflash.model.numerics import Numerics, numerics_of
from dflash.serve.admin import model_facts


def descriptions(lm, numerics, monkeypatch):
    """Return all that names the types of a model: texts, and dicts in which each type has its field."""
    for module in (identity, environment, model_facts):
        monkeypatch.setattr(module, "numerics_of", lambda model: numerics)
    loaded = SimpleNamespace(model=lm.model, file=lm.file)
    facts = asdict(model_facts.ModelFacts.of(loaded))
    props = {"model": facts, "total_slots": 1, "device": "cpu", "processor": {}, "build_info": "", "n_ctx": 1}
    answers = {"/props": {**props, "fixed_drafts": True}, "/health": {"verifier": "Coupled()"}}
    monkeypatch.setattr(ServerConnection, "json", lambda self, method, path: answers[path])
    about = {**dflash.environment(lm)["model"], "sha256": ["0"]}
    shared = {"max_tokens": 1, "sampling": {}, "prompts": {}}
    key = replay.acceptance_key({"cell": dict.fromkeys(replay._CELL), "setup": {"model": about}, **shared})
    kernels = kernels_of(lm.file, lm.model.config, device="cpu", numerics=numerics)
    texts = identity.identity_of(loaded), facts["fingerprint"], key, kernels
    return texts, (about, facts, ServerRunner("http://none").setup()["model"])


@pytest.mark.parametrize("name", [field.name for field in fields(Numerics)])
def test_every_description_of_a_model_names_each_number_type(lm, name, monkeypatch):
    here = numerics_of(lm.model)
    texts, _ = descriptions(lm, here, monkeypatch)
    others, dicts = descriptions(lm, replace(here, **{name: "another"}), monkeypatch)
    assert not set(texts) & set(others)
    assert [about[name] for about in dicts] == ["another"] * 3
