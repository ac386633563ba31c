"""Origins of tokens: names, colours, marks, and the style sheet of the HTML."""

COLORS = {"accepted": "#2b7fb8", "bonus": "#808080", "corrected": "#c07000", "injected": "#b05aa0", "rejected": "#808080"}
"""Colour of each origin, in the order of the legend; contrast of at least 3 (WCAG 2.2, 1.4.11) with white and with #111."""

MEANING = {
    "accepted": "accepted draft token",
    "bonus": "bonus token",
    "corrected": "bonus token in place of rejected draft tokens",
    "injected": "token injected by a recovery",
    "rejected": "rejected draft token",
}

TAGS = {"accepted": "u", "bonus": "span", "corrected": "i", "injected": "b"}
"""Element of a token in the text; these still look different where a viewer removes the style sheet."""

_LINES = {"accepted": "2px solid", "bonus": "2px dotted", "corrected": "2px dashed", "injected": "4px double"}

_TINT = "40"
"""Opacity of the background in hexadecimal, 25 %: the text keeps a contrast of at least 4.5 with it (WCAG 2.2, 1.4.3)."""

STYLE = (
    """
.dflash{color:var(--jp-content-font-color1,inherit);font-size:14px;font-variant-numeric:tabular-nums}
.dflash pre{white-space:pre-wrap;overflow-wrap:anywhere;max-width:100ch;margin:8px 0;padding:0;border:0;background:none;
color:inherit;font:13px/1.75 var(--jp-code-font-family,monospace)}
.dflash .t{margin-right:1px;border-radius:2px;font-style:normal;font-weight:inherit;text-decoration:none}
.dflash pre .t{cursor:help}
.dflash pre .t:hover{outline:1px solid}
.dflash .t:empty::before{content:"\\b7"}
.dflash s{text-decoration:none}
.dflash s::before{content:attr(data-t);opacity:.6;font-style:italic}
.dflash .legend,.dflash .facts{display:flex;flex-wrap:wrap;align-items:flex-start;gap:4px 16px;margin:4px 0}
.dflash .legend .t{padding:0 4px}
.dflash .facts{gap:8px 32px}
.dflash .chart{overflow-x:auto;margin:8px 0}
.dflash table{margin:0;border-collapse:collapse;color:inherit;font-size:inherit}
.dflash th,.dflash td{text-align:left!important;vertical-align:top!important;padding:1px 8px 1px 0!important;border:0;
white-space:normal;overflow-wrap:break-word;max-width:64ch}
.dflash th{font-weight:normal;color:var(--jp-content-font-color2,inherit)}
.dflash .facts th{white-space:nowrap}
.dflash .n{text-align:right!important}
.dflash td.n{white-space:nowrap}
.dflash svg{vertical-align:middle}
.dflash .warning{font-weight:bold;color:var(--jp-error-color1,#d64545)}
""".replace("\n", "")
    + "".join(
        f".dflash .{origin}{{background:{COLORS[origin]}{_TINT};border-bottom:{line} {COLORS[origin]}}}"
        for origin, line in _LINES.items()
    )
)
"""Rules for elements inside ``class="dflash"``.

The text keeps the colour of the page or of JupyterLab's theme. Tints are translucent and lines have contrast with light and
dark, so the same rules serve both, also where a page does not follow the system's preferred colour scheme. Rules
marked important replace those of JupyterLab for tables.
"""
