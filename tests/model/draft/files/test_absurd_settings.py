"""Invalid settings of draft models, drawn at random: each is refused in one line, or the configuration makes sense."""

import copy
import random

import numpy as np
import pytest
from drafts import KINDS, json_config, random_weights, shapes, write_gguf

from dflash.errors import ModelError
from dflash.model.draft.files.folder import config_of as config_of_folder
from dflash.model.draft.files.gguf_dialects import config_of as config_of_gguf
from dflash.model.gguf.file import GGUFFile

ABSURD = [
    None,
    -1,
    0,
    1,
    3,
    1 << 40,
    1e30,
    float("nan"),
    "x",
    "",
    [],
    {},
    [None],
    [[1]],
    True,
    [1 << 70],
    ["full_attention"],
]


def absurd(rng, config):
    """A configuration with one to three invalid values, at any depth."""
    config = copy.deepcopy(config)
    for _ in range(rng.randint(1, 3)):
        place = config["dflash_config"] if rng.random() < 0.4 and isinstance(config.get("dflash_config"), dict) else config
        key = rng.choice([*place, "rope_scaling", "rope_parameters", "use_swa", "transformer_layer_config", "causal"])
        if rng.random() < 0.2:
            place.pop(key, None)
        else:
            place[key] = rng.choice(ABSURD)
    return config


@pytest.mark.parametrize("kind", KINDS)
def test_absurd_settings_are_refused_or_make_sense(kind):
    rng, config, refused = random.Random(3), KINDS[kind], 0
    of_tensors = shapes(config)
    for _ in range(1500):
        try:
            got = config_of_folder(absurd(rng, json_config(config)), of_tensors)
        except ModelError as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            assert len(got.windows) == len(got.causal) == got.n_layers
            assert 1 <= got.max_draft < 32
    assert refused > 800


@pytest.mark.parametrize("kind", KINDS)
def test_absurd_keys_are_refused_or_make_sense(tmp_path, kind):
    rng, config, refused = random.Random(4), KINDS[kind], 0
    path, of_tensors = write_gguf(tmp_path / "x.gguf", config, random_weights(config)), shapes(config)
    with GGUFFile.open(path) as file:
        keys = {name: value for name, value in file.metadata.items() if not name.startswith("GGUF.")}
    values = [
        -1,
        0,
        3,
        1 << 40,
        1e30,
        float("nan"),
        "x",
        True,
        np.array([], np.int32),
        np.array([1 << 30]),
        np.ones(3),
        ["a"],
    ]
    for _ in range(1500):
        damaged = dict(keys)
        for name in rng.sample(sorted(damaged), rng.randint(1, 3)):
            if rng.random() < 0.3:
                del damaged[name]
            else:
                damaged[name] = rng.choice(values)
        try:
            got = config_of_gguf(damaged, of_tensors)
        except ModelError as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            assert len(got.windows) == len(got.causal) == got.n_layers
    assert refused > 800
