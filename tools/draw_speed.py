"""Draw dflash's speed beside llama.cpp's on the same files and machines, as an SVG.

python tools/draw_speed.py > docs/pictures/speed.svg

The numbers are those of `benchmarks/results/README.md`, which has their commits and commands.
"""

ROWS = (
    ("demo, 2 cores of a Zen 5", "generation", 624, 482),
    ("", "prompt of 512", 3678, 2112),
    ("27B Q4_K_M, one H200", "generation", 197.3, 84.7),
    ("", "prompt of 2,048", 11282, 2631),
    ("35B-A3B Q4_K_M, one H200", "generation", 892, 246),
    ("", "prompt of 2,048", 46469, 8477),
)
"""Machine and model, what is measured, tokens per second of dflash and of llama.cpp. Generation is plain, without drafts."""

WIDTH, LEFT, BAR, STEP, SCALE = 880, 350, 15, 58, 70
"""Pixels; `SCALE` are those of llama.cpp's speed."""

STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
.dim { fill: #57606a; font-size: 13px }
.bold { font-weight: 600 }
.panel { fill: #f6f8fa; stroke: #d0d7de; rx: 8px }
.ours { fill: #2b7fb8 }
.theirs { fill: #8c959f }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .dim { fill: #9198a1 } .panel { fill: #161b22; stroke: #30363d } .theirs { fill: #6e7681 }
}
"""


def main() -> None:
    """Print the SVG."""
    height = 56 + STEP * len(ROWS)
    key = LEFT + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Tokens per second of dflash and of llama.cpp on the same files and machines</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="panel" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}"/>',
        '<text x="24" y="32" class="bold">Tokens per second, without speculation</text>',
        f'<rect class="ours" x="{key}" y="21" width="14" height="14"/><text x="{key + 20}" y="33" class="dim">dflash</text>',
        f'<rect class="theirs" x="{key + 90}" y="21" width="14" height="14"/>'
        f'<text x="{key + 110}" y="33" class="dim">llama.cpp</text>',
    ]
    for i, (machine, what, ours, theirs) in enumerate(ROWS):
        y = 58 + i * STEP
        if machine:
            parts.append(f'<text x="24" y="{y + 13}" class="bold">{machine}</text>')
        parts.append(f'<text x="{LEFT - 12}" y="{y + 20}" text-anchor="end" class="dim">{what}</text>')
        for j, (name, speed) in enumerate((("ours", ours), ("theirs", theirs))):
            top, width = y + j * (BAR + 3), SCALE * speed / theirs
            ratio = f"  ({ours / theirs:.1f} times)" if name == "ours" else ""
            parts.append(f'<rect class="{name}" x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}"/>')
            parts.append(f'<text x="{LEFT + width + 8:.1f}" y="{top + 12}" class="dim">{speed:,.0f}{ratio}</text>')
    print("\n".join([*parts, "</svg>"]))


if __name__ == "__main__":
    main()
