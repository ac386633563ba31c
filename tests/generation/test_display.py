"""Display of a generation."""

import pytest
from generations import DRAFTED, PREFILL, TREE, generation

from dflash.decode.drafting.draft import EMPTY
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.session import Step
from dflash.generation.display import summary
from dflash.generation.display.origins import kinds
from dflash.generation.display.page import MAX_STEPS
from dflash.generation.display.palette import COLORS


def test_html_escapes_what_the_model_wrote():
    html = generation([PREFILL, Step([1], forward=0.01)], text="<script>alert('x')</script>")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (DRAFTED[1], ["accepted", "accepted", "bonus"]),
        (DRAFTED[2], ["corrected", "rejected", "rejected", "rejected"]),
        (Step([1, 9, 3], drafted=4, accepted=2, draft=TREE), ["accepted", "accepted", "corrected"]),
        (Step([1, 2], drafted=4, accepted=2, draft=TREE, finish="length"), ["accepted", "accepted", "rejected"]),
        (Step([4], draft=EMPTY), ["bonus"]),
        (Step([4, 5, 6], injected=2), ["injected", "injected", "bonus"]),
        (Step([], drafted=4, draft=TREE), ["rejected"] * 3),
        (PREFILL, []),
    ],
)
def test_tokens_of_a_step_are_classified(step, found):
    assert kinds(step) == found


def test_html_has_a_square_for_each_token_and_each_rejected_draft_token():
    html = generation(DRAFTED)._repr_html_()
    for kind, n in {"accepted": 2, "bonus": 1, "corrected": 1}.items():
        assert html.split("<table>")[0].count(f'fill="{COLORS[kind]}"') == n
    assert html.count(f'fill="none" stroke="{COLORS["rejected"]}"') == 3
    assert "25.0%" in html


def test_draft_vocabulary_is_shown():
    some = generation(DRAFTED, draft_vocab_steps={99_328: 1200, 248_320: 2})
    words = "99,328 tokens in 1,200 steps and 248,320 tokens in 2 steps"
    assert f", draft vocabulary {words}, stop" in summary(some)
    assert f"<tr><th>draft vocabulary</th><td>{words}</td></tr>" in some._repr_html_()
    assert some.as_dict()["draft_vocab_steps"] == {"99328": 1200, "248320": 2}
    for shown in (summary(generation(DRAFTED)), generation(DRAFTED)._repr_html_()):
        assert "draft vocabulary" not in shown


def test_acceptance_by_position():
    """The tree drafts three positions of which two are accepted, the chain four of which none is."""
    assert generation(DRAFTED).acceptance_by_position == [0.5, 0.5, 0, 0]


def test_html_of_many_steps_is_cut():
    html = generation([Step([1])] * (MAX_STEPS + 5))._repr_html_()
    assert html.count("<rect") == MAX_STEPS
    assert f"first {MAX_STEPS} of {MAX_STEPS + 5}" in html


def test_what_recoveries_did_is_shown():
    stopped = Intervention(2, "LoopGuard", "cut", "the last 12 tokens were < a loop >")
    shown = generation(DRAFTED, interventions=[stopped], warnings=["the draft is <wrong>"])
    html = shown._repr_html_()
    assert "&lt; a loop &gt;" in html
    assert "&lt;wrong&gt;" in html
    assert "LoopGuard: the last 12" in summary(shown)
    assert "warning: the draft" in summary(shown)
    assert shown.as_dict()["interventions"][0]["action"] == "cut"


@pytest.mark.parametrize("steps", [[], [PREFILL], [Step([], finish="length")]])
def test_nothing_written_can_be_shown(steps):
    empty = generation(steps, text="")
    assert "<svg" not in empty._repr_html_()
    assert empty.tokens_per_step == 0
    assert empty.acceptance is None
    assert "0 tokens" in repr(empty)


def test_summaries_show_the_numbers_of_a_generation():
    shown = generation(DRAFTED)
    assert shown.tokens_per_step == 2
    assert shown.acceptance == 0.25
    assert shown.usage.total_tokens == 11
    assert "2.00 tokens per step" in summary(shown)
    assert "stop" in summary(shown)


def test_a_plot_has_a_bar_for_each_origin_and_step(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    figure = generation([*DRAFTED, Step([4, 5], injected=1)]).plot()
    above, below = figure.axes
    bars = {drawn.get_label(): [bar.get_height() for bar in drawn] for drawn in above.containers}
    assert bars == {
        "injected tokens": [0, 0, 1],
        "accepted draft tokens": [2, 0, 0],
        "bonus tokens": [1, 1, 1],
        "rejected draft tokens": [-2, -4, 0],
    }
    assert max(bar.get_y() + bar.get_height() for bar in above.patches) == 3
    assert below.get_xlabel() == "step"
    figure.savefig(tmp_path / "steps.png")


@pytest.mark.parametrize("steps", [[], [PREFILL], [Step([4])]])
def test_a_plot_of_nothing_drafted(steps, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    figure = generation(steps).plot()
    assert [drawn.get_label() for drawn in figure.axes[0].containers] == ["bonus tokens"]
    figure.savefig(tmp_path / "steps.png")


def test_a_long_text_is_cut_in_repr():
    assert len(repr(generation(DRAFTED, text="a" * 500))) < 120
