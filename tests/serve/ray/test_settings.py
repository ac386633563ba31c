"""Settings of the deployments on Ray."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from dflash.errors import DFlashError, RequestError

pytestmark = pytest.mark.usefixtures("deployments")


def settings(environment=None, **given):
    from dflash.serve.ray.settings import RaySettings

    return RaySettings.of(given, environment or {})


def test_arguments_come_before_variables_and_texts_are_converted():
    variables = {
        "DFLASH_RAY_MODEL": "a.gguf",
        "DFLASH_RAY_REPLICAS": "3",
        "DFLASH_RAY_NUM_GPUS": "0.5",
        "DFLASH_RAY_OTHER": "x",
    }
    found = settings(variables, replicas="4", options="--sequences 2")
    assert (found.model, found.replicas, found.num_gpus, found.server.sequences) == ("a.gguf", 4, 0.5, 2)
    assert found.words == ["a.gguf", "--sequences", "2"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"replica": 2}, "replica: there is no such setting; known are model, options, "),
        ({"replicas": "two"}, "replicas: must be an integer, got 'two'"),
        ({"replicas": True}, "replicas: must be an integer, got True"),
        ({"num_gpus": "nan"}, "num_gpus: must be a number of at least 0, got nan"),
        ({"min_share": 2}, "min_share: must be 0 to 1, got 2"),
        ({"replicas": 3, "max_replicas": 2}, "max_replicas: must be at least replicas, 3, got 2"),
        ({"options": "--port 80"}, "options: --port has no meaning here: Ray's proxies listen"),
        ({"options": "--no-such"}, "options: '--no-such' is not valid"),
        ({"options": "--prefix-cache-mib -1"}, "--prefix-cache-mib: must be at least 0, got -1"),
    ],
)
def test_wrong_settings_are_named(given, words):
    with pytest.raises((RequestError, DFlashError)) as caught:
        settings(**given)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(("sequences", "bound"), [(2, 4), (8, 16), (100, 64)])
def test_the_router_gets_the_bound_for_the_batch(deployments, sequences, bound):
    graph = deployments.app({"num_gpus": 0, "options": f"--sequences {sequences}", "max_replicas": 5})
    model = graph._bound_deployment.init_args[0]._bound_deployment
    assert model._deployment_config.request_router_config.request_router_kwargs["balance_absolute"] == bound
    assert model._deployment_config.autoscaling_config.max_replicas == 5
    assert model._deployment_config.autoscaling_config.target_ongoing_requests == sequences


def test_the_documented_configuration_is_valid(deployments):
    import yaml
    from ray.serve.schema import ServeDeploySchema

    page = (Path(__file__).parents[3] / "docs" / "ray.md").read_text()
    written = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    (application,) = ServeDeploySchema.model_validate(written).applications
    assert application.import_path == "dflash.serve.ray:app"
    found = settings(**application.args)
    assert (found.model, found.max_replicas, found.server.sequences) == ("/models/qwen.gguf", 8, 8)
    assert {name for name in re.findall(r"^\| (`.+`) \|", page, re.M) for name in re.findall(r"`(\w+)`", name)} == names(
        found
    )


def test_the_environment_alone_is_enough(deployments, monkeypatch):
    import dflash.serve.ray

    monkeypatch.setenv("DFLASH_RAY_REPLICAS", "2")
    model = dflash.serve.ray.built._bound_deployment.init_args[0]._bound_deployment
    assert model._deployment_config.num_replicas == 2


def names(found):
    return {each.name for each in fields(found)}
