"""Figures hold on light and dark pages."""

import io

import pytest

from dflash.generation.display import figure, palette, theme

pytest.importorskip("matplotlib")


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
def test_every_colour_has_contrast(page):
    """WCAG 2.2: 3 for parts of a picture; text has more."""
    for color in (*theme.SERIES, *palette.COLORS.values(), *figure._PARTS.values()):
        assert contrast(color, page) >= 3, color
    assert contrast(theme.INK, page) >= 4.2


def test_a_figure_has_a_title_and_no_background(lm):
    import matplotlib.image

    with lm.stream("import os", strategy="dflash", max_tokens=8) as stream:
        list(stream)
        made = stream.generation.plot()
    assert made._suptitle.get_text() == f"8 tokens in {sum(bool(step.tokens) for step in stream.generation.steps)} steps"
    assert made.dpi == theme.DPI
    data = io.BytesIO()
    made.savefig(data, format="png")
    data.seek(0)
    pixels = matplotlib.image.imread(data)
    assert pixels.shape[1] == 8 * theme.DPI
    assert (pixels[:3, :, 3] == 0).all()
    assert (pixels[..., 3] == 0).mean() > 0.5
