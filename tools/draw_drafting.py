"""Draw how a text is drafted, as an animated SVG, from a real generation of the demo model.

python tools/draw_drafting.py > docs/pictures/drafting.svg

Each step shows the draft tokens (accepted or rejected) below the text so far. The colours are those of the notebook display.
"""

from collections.abc import Sequence
from html import escape

import dflash
from dflash.decode.metrics import accepted_nodes
from dflash.decode.step import Step
from dflash.generation.display.palette import COLORS
from dflash.model.text.tokenizer import Tokenizer

PROMPT = "Write a Python function named factorial."
MAX_TOKENS = 100
SECONDS = 1.6
"""Seconds that the animation shows each step."""

WIDTH, LEFT, TOP, GLYPH, LINE, SIZE = 880, 24, 36, 9.0, 26, 15
DRAFT_COLUMNS = 88
"""Characters of a row of draft tokens."""

STYLE = f"""
text {{ font: {SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #24292f; white-space: pre }}
.dim {{ fill: #6e7781; font-size: 13px }}
rect {{ rx: 3px }}
.panel {{ fill: #f6f8fa; stroke: #d0d7de; rx: 8px }}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e6edf3 }} .dim {{ fill: #9198a1 }} .panel {{ fill: #161b22; stroke: #30363d }}
}}
@media (prefers-reduced-motion: reduce) {{ * {{ animation: none !important }} }}
"""


def main() -> None:
    """Print the SVG."""
    with dflash.load("demo", device="cpu") as lm:
        messages = [{"role": "user", "content": PROMPT}]
        settings = {"max_tokens": MAX_TOKENS, "chat_template_kwargs": {"enable_thinking": False}}
        generation = lm.generate(messages, strategy="dflash", **settings)
        steps = [step for step in generation.steps if step.tokens]
        print(Drawing(lm.tokenizer, steps).svg())


class Drawing:
    """The text grows by the tokens of each step; the step's draft stands below it."""

    def __init__(self, tokenizer: Tokenizer, steps: Sequence[Step]) -> None:
        self._tokenizer, self._steps, self._n = tokenizer, steps, len(steps)
        self._parts: list[str] = []

    def svg(self) -> str:
        """Return the SVG."""
        column, row = 0, 0
        for k, step in enumerate(self._steps):
            n_accepted = len(accepted_nodes(step))
            for i, token in enumerate(step.tokens):
                origin = "accepted" if i < n_accepted else "corrected"
                text = self._tokenizer.decode([token]) if token not in self._tokenizer.eos_ids else ""
                for j, piece in enumerate(text.split("\n")):
                    if j:
                        column, row = 0, row + 1
                    self._token(column, row, piece, origin, name=f"from{k}")
                    column += len(piece)
        below = 58 + (row + 1) * LINE
        rows = max(self._draft(k, step, below) for k, step in enumerate(self._steps))
        height = below + 34 + rows * LINE
        legend = self._legend(height)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 34}" role="img">'
        title = (
            "<title>A text of the demo model grows step by step: draft tokens are accepted or rejected, "
            "and each step adds one token of the model itself</title>"
        )
        panel = f'<rect class="panel" x=".5" y=".5" width="{WIDTH - 1}" height="{height + 33}"/>'
        return "\n".join([head, title, f"<style>{STYLE}{self._motion()}</style>", panel, *self._parts, *legend, "</svg>"])

    def _motion(self) -> str:
        """Return CSS: `fromK` appears with step K and stays, `onlyK` is there during step K."""
        rules, total = [], self._n + 2
        for k in range(self._n):
            is_last = k == self._n - 1
            shown, begins, ends = 100 * (k + 0.5) / total, 100 * k / total, 100 if is_last else 100 * (k + 1) / total
            rules.append(
                f"@keyframes from{k} {{ 0%, {shown:.2f}% {{ opacity: 0 }} {shown + 0.01:.2f}%, 100% {{ opacity: 1 }} }}"
            )
            rules.append(
                f"@keyframes only{k} {{ 0%,{begins:.2f}% {{ opacity: 0 }} {begins + 0.01:.2f}%, {ends:.2f}% {{ opacity: 1 }}"
                + ("}" if is_last else f" {ends + 0.01:.2f}%, 100% {{ opacity: 0 }} }}")
            )
            rules += [f".{name}{k} {{ animation: {name}{k} {total * SECONDS:g}s infinite }}" for name in ("from", "only")]
            rules.append(f".only{k} {{ opacity: {int(is_last)} }}")
        return "\n".join(rules)

    def _draft(self, k: int, step: Step, top: float) -> int:
        """Draw the draft of a step; return its number of rows."""
        accepted = set(accepted_nodes(step))
        words = f"step {k + 1}: {step.drafted} draft tokens, {len(accepted)} accepted"
        self._parts.append(f'<g class="only{k}"><text x="{LEFT}" y="{top}" class="dim">{words}</text>')
        column, row = 0, 0
        for node, token in enumerate(step.draft.tokens.tolist()):
            piece = self._tokenizer.decode([token]).replace("\n", "⏎")
            if column + len(piece) > DRAFT_COLUMNS:
                column, row = 0, row + 1
            self._token(column, row, piece, "accepted" if node in accepted else "rejected", top=top + 26)
            column += len(piece) + 0.5
        self._parts.append("</g>")
        return row + 1

    def _token(self, column: float, row: int, piece: str, origin: str, *, name: str = "", top: float = TOP) -> None:
        if not piece:
            return
        x, y, width = LEFT + column * GLYPH, top + row * LINE, len(piece) * GLYPH
        group = f' class="{name}"' if name else ""
        self._parts.append(f"<g{group}>")
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y - 16:.1f}" width="{width - 1:.1f}" height="22" '
            f'fill="{COLORS[origin]}" fill-opacity=".22"/>'
        )
        strike = (
            f'<path d="M{x:.1f} {y - 5:.1f}h{width - 1:.1f}" stroke="{COLORS[origin]}"/>' if origin == "rejected" else ""
        )
        self._text(x, y, piece, ' fill-opacity=".6"' if strike else "")
        self._parts.append(f"{strike}</g>")

    def _text(self, x: float, y: float, piece: str, more: str = "") -> None:
        if piece.strip():
            width = len(piece) * GLYPH
            self._parts.append(
                f'<text x="{x:.1f}" y="{y:.1f}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs" '
                f'xml:space="preserve"{more}>{escape(piece)}</text>'
            )

    def _legend(self, y: float) -> list[str]:
        """Return the legend at the bottom."""
        found, x = [], LEFT
        for origin, words in {
            "accepted": "accepted draft token",
            "corrected": "token of the model itself",
            "rejected": "rejected draft token",
        }.items():
            found.append(f'<rect x="{x}" y="{y + 4}" width="16" height="16" fill="{COLORS[origin]}" fill-opacity=".35"/>')
            found.append(f'<text x="{x + 22}" y="{y + 17}" class="dim">{words}</text>')
            x += 40 + 7.4 * len(words)
        return found


if __name__ == "__main__":
    main()
