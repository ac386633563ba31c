"""How a generation shows itself."""

import pytest

from dflash.decode.sampling import Sampling
from dflash.decode.session import Step
from dflash.decode.strategy import Plain
from dflash.display import MAX_CELLS, summary
from dflash.generation import Generation, Timings, Usage

TIMINGS = Timings(queued=0.0, first_token=0.05, decode=0.1, prompt_rate=900.0, decode_rate=80.0)


def generation(steps, text="2 < 3"):
    tokens = [token for step in steps for token in step.tokens]
    pieces = [text if number == 0 else "" for number in range(len(steps))]
    usage = Usage(7, len(tokens))
    return Generation([1] * 7, tokens, text, "stop", 3, Sampling(), Plain(), usage, TIMINGS, steps, pieces)


PREFILL = Step([], prefilled=6, forward=0.01)
GUESSED = [PREFILL, Step([1, 2, 3], drafted=4, accepted=2, forward=0.02), Step([4], drafted=4, forward=0.02)]


def test_html_escapes_what_the_model_wrote():
    html = generation([PREFILL, Step([1], forward=0.01)], text="<script>alert('x')</script>")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_html_has_a_square_for_each_token():
    html = generation(GUESSED)._repr_html_()
    assert html.count("<rect") == 4
    assert html.count("<g>") == 2
    assert "25%" in html


def test_html_of_many_steps_is_cut():
    html = generation([Step([1])] * (MAX_CELLS + 5))._repr_html_()
    assert html.count("<rect") == MAX_CELLS
    assert f"first {MAX_CELLS} of {MAX_CELLS + 5}" in html


@pytest.mark.parametrize("steps", [[], [PREFILL], [Step([], finish="length")]])
def test_nothing_written_can_be_shown(steps):
    empty = generation(steps, text="")
    assert "<svg" not in empty._repr_html_()
    assert empty.tokens_per_step == 0
    assert empty.acceptance is None
    assert "0 tokens" in repr(empty)


def test_numbers():
    shown = generation(GUESSED)
    assert shown.tokens_per_step == 2
    assert shown.acceptance == 0.25
    assert shown.usage.total_tokens == 11
    assert "2.00 tokens a step" in summary(shown)
    assert "stop" in summary(shown)


def test_a_plot_has_a_bar_for_each_step(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    figure = generation(GUESSED).plot()
    above, below = figure.axes
    assert len(above.patches) == 4
    assert below.get_xlabel() == "step"
    figure.savefig(tmp_path / "steps.png")


def test_a_long_text_is_cut_in_repr():
    assert len(repr(generation(GUESSED, text="a" * 500))) < 120
