"""The printed program is the one that runs, in the launches that it names."""

import pytest
from golden import FILES, load, path_of

from dflash.__main__ import main
from dflash.kernels.joined import cpu as joined_kernels
from dflash.model.batch import Span
from dflash.model.run.listing import host_listing


@pytest.mark.parametrize("name", FILES)
def test_neighbours_that_are_listed_as_joined_are_one_launch(name, monkeypatch):
    model, launches, run = load(name), [0], joined_kernels.run

    def counted(*args):
        launches[0] += 1
        run(*args)

    monkeypatch.setattr(joined_kernels, "run", counted)
    state = model.state()
    model.forward([Span.chain(state, [1])])
    state.close()
    parts = host_listing(model.weights, model.config, (1,))
    of_layer = {i: part.lines for part in parts for i in part.layers}
    order = [parts[0].lines, *(of_layer[i] for i in range(model.config.n_layers)), parts[-1].lines]
    joined = [line.kernels[0].startswith("joined") for lines in order for line in lines]
    begins = [now and not before for before, now in zip([False, *joined], joined, strict=False)]
    assert launches[0] == sum(begins)


def test_the_command_prints_rows_with_equal_kernels_together(capsys):
    assert main(["info", str(path_of("qwen3-dense-Q4_0")), "--device", "cpu", "--kernels", "1", "17"]) == 0
    printed = capsys.readouterr().out
    assert "stream += linear(inner, ffn_down)\n      1: joined Q4_0 dot; 17, prompt: alone Q4_0 tiles" in printed


def test_rows_that_no_pass_has_are_refused(capsys):
    assert main(["info", str(path_of("qwen3-dense-Q4_0")), "--device", "cpu", "--kernels", "0"]) != 0
    assert "--kernels: rows must be 1 to 512, got 0" in capsys.readouterr().err


def test_the_network_of_a_draft_model_is_refused(capsys):
    assert main(["info", "demo-draft", "--kernels"]) != 0
    assert "this file is a draft model" in capsys.readouterr().err
