"""What is around the page: the words before anything is computed, its styles, and light or dark.

Colours of the page are variables that follow the reader's system, or the choice in the header. Charts are painted by
bokeh on canvases, which styles do not reach: a script exchanges the colours of their models for those of the other
look, in the browser alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from panel.io.resources import BASE_TEMPLATE
from panel.theme import Inherit, Native
from panel.viewable import Viewable

from widthwise.explorer.settings import CONTROLS
from widthwise.plots.style import DARK, INK, PAPER

#: Variables of the page: on light, on dark.
_PAGE_COLOURS = {
    "ink": (INK, DARK[INK]),
    "paper": (PAPER, DARK[PAPER]),
    "soft": ("#57606a", "#a9b3bd"),
    "line": ("#c4c9cf", "#4a525b"),
    "band": ("#f3f5f7", "#262c33"),
    "link": ("#0b4f8a", "#8ec5ff"),
    "warning": ("#fbeee6", "#4a2c17"),
    "button": ("#0b5f9e", "#0b5f9e"),
}
#: What charts have on light, and what replaces it on dark: the colours of figures, and those that bokeh starts with.
_CHART_COLOURS = DARK | {"black": "#b6bdc5", "#444444": "#d5d9de", "#e5e5e5": "#343b43", "#666666": "#9aa2ab"}

_VARIABLES = "".join(f"--page-{name}:light-dark({light},{dark});" for name, (light, dark) in _PAGE_COLOURS.items())
#: Those of figures that `web_svg` wrote.
_VARIABLES += "".join(f"--ww-{light[1:]}:light-dark({light},{dark});" for light, dark in DARK.items())
_STYLE = (
    f":root{{color-scheme:light dark;{_VARIABLES}"
    """--design-background-color:var(--page-paper);--design-background-text-color:var(--page-ink);
--design-surface-color:var(--page-band);--design-surface-text-color:var(--page-ink);
--design-primary-color:var(--page-button)}
:root[data-look=light]{color-scheme:light}
:root[data-look=dark]{color-scheme:dark}
body{margin:0;background:var(--page-paper);color:var(--page-ink);font-family:system-ui,sans-serif}
#opening{margin:8px 12px;font-size:15px;line-height:1.35}
#opening h1{font-size:18px;margin:0 0 2px}
#opening label{float:right;font-size:13px;margin-left:12px}
#opening select{font:inherit;color:inherit;background:var(--page-paper);border:1px solid var(--page-soft)}
#loading{margin:16px 12px;font-size:15px}
body:has(div[data-root-id]:not(:empty)) #loading{display:none}
"""
)
_LABELS = {name: control.label for name, control in CONTROLS.items()}
_SCRIPT = f"const ON_DARK = {json.dumps(_CHART_COLOURS)}, LABELS = {json.dumps(_LABELS)};\n"
_SCRIPT += Path(__file__).with_name("page.js").read_text(encoding="utf-8")
_TEMPLATE = (
    "{% extends 'base.html' %}{% block preamble %}"
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f"<style>{_STYLE}</style><script>{{% raw %}}{_SCRIPT}{{% endraw %}}</script>"
    """{% endblock %}{% block contents %}
<header id="opening"><label>Colours <select id="look"><option>system</option><option>light</option>
<option>dark</option></select></label>
<h1>widthwise explorer</h1>What random networks of this shape do, layer by layer, before and after
training: move a slider and every curve follows.</header>
<main><p id="loading" role="status">Loading the page …</p>
{{ super() }}</main>
{% endblock %}"""
)
FRAME = BASE_TEMPLATE.environment.from_string(_TEMPLATE)

#: Inside every widget, where styles of the page do not reach but its variables do.
_WIDGET_STYLE = """
:host{--color:var(--page-ink);--background-color:var(--page-paper);--border-color:var(--page-line);
--surface-background-color:var(--page-band);--disabled-background-color:var(--page-band);
--placeholder-color:var(--page-soft);--inactive-bg:var(--page-band);--inactive-fg:var(--page-soft);
--hover-color:var(--page-band);--active-bg:var(--page-band);--active-fg:var(--page-link)}
a,summary{color:var(--page-link)}
.bk-input{color:var(--page-ink);border-color:var(--page-soft)}
select:not([size]).bk-input{appearance:auto;background-image:none}
.noUi-target{background:var(--page-band);border-color:var(--page-soft);box-shadow:none}
.noUi-connect{background:var(--page-line) !important}
.noUi-handle{background:var(--page-paper);border-color:var(--page-soft);box-shadow:none}
progress,progress::-webkit-progress-bar{background:var(--page-band) !important;box-shadow:none !important}
"""


class PageDesign(Native):
    """Widgets in the colours of the page."""

    modifiers: ClassVar = {Viewable: {"stylesheets": [Inherit, _WIDGET_STYLE]}}
