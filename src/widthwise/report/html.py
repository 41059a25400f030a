"""Pieces of the page: tables, figures as embedded SVG, equations as embedded SVG. Nothing refers to the outside."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import math_to_image

from widthwise.plots.style import INK, light_or_dark, look, narrow, web_svg


def cell(value: Any) -> str:
    """A number with four digits, a word as it is, nothing for None."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.4g}".replace("-", "−").replace("inf", "∞")
    return escape(str(value))


def html_table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """A table that scrolls by itself on a narrow page; the head may hold markup."""
    rows = [list(row) for row in rows]
    # numbers to the right, words to the left, long ones with room
    longest = [max((len(row[i]) for row in rows if isinstance(row[i], str)), default=-1) for i in range(len(head))]
    kinds = ["" if length < 0 else " class=long" if length > 24 else " class=word" for length in longest]
    top = "".join(f"<th scope='col'{kind}>{h}</th>" for h, kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell(c)}</td>" for c, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    title = f"<caption>{caption}</caption>" if caption else ""
    # a region that scrolls must be reached by the keyboard
    place = "<div class='scroll' tabindex='0' role='region' aria-label='table'>"
    return f"{place}<table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def image(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def figure(draw: Callable[[], Any], caption: str, alt: str) -> str:
    """A figure in two layouts, of which the page shows the one that fits."""
    wide = image(web_svg(draw()))
    with narrow():
        slim = image(web_svg(draw()))
    return (
        f"<figure><picture><source media='(max-width: 700px)' srcset='{slim}'>"
        f"<img src='{wide}' alt='{escape(alt, quote=True)}'></picture><figcaption>{caption}</figcaption></figure>"
    )


def equations(parts: Mapping[str, str]) -> str:
    """Equations on a line of their own that wraps: TeX, and the words that are read out where it is not seen."""
    images = []
    for tex, words in parts.items():
        text = io.BytesIO()
        with look():
            math_to_image(f"${tex}$", text, prop=FontProperties(size=13), format="svg", color=INK)
        svg = "\n".join(line for line in text.getvalue().decode().splitlines() if "<dc:date>" not in line)
        images.append(f"<img src='{image(light_or_dark(svg))}' alt='{escape(words, quote=True)}'>")
    return f"<p class='equation'>{''.join(images)}</p>"


def marked_up(text: str) -> str:
    """Plain text with blank lines between paragraphs; C_b and l^2 become subscripts and superscripts."""
    blocks = [block.split("\n") for block in text.split("\n\n") if block.strip()]
    found = "".join("<p>" + "<br>".join(escape(line.strip()) for line in block) + "</p>" for block in blocks)
    found = re.sub(r"\b([CλχnKa])_([A-Za-z0-9∥⊥]+)", r"\1<sub>\2</sub>", found)
    return re.sub(r"\^([-−]?[\d.]*\d)", r"<sup>\1</sup>", found)


def details(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


#: Light or dark; without a script, which a file that is sent around had better not have.
LOOK_SWITCH = (
    "<fieldset class='look'><legend>Colours</legend>"
    "<label><input type='radio' name='look' checked> as the system</label>"
    "<label><input type='radio' name='look' id='light'> light</label>"
    "<label><input type='radio' name='look' id='dark'> dark</label></fieldset>"
)
REPORT_STYLE = """
:root{color-scheme:light dark;--ink:light-dark(#1d2733,#e6e8eb);--soft:light-dark(#5a6672,#a9b3bd);
--line:light-dark(#d9dee3,#3a424b);--accent:light-dark(#1b3a57,#8ec5ff);--paper:light-dark(#fff,#1b1f24);
--band:light-dark(#f4f6f8,#252b32);--shade:light-dark(#0004,#fff4)}
:root:has(#light:checked){color-scheme:light}:root:has(#dark:checked){color-scheme:dark}
.look{border:0;padding:0;margin:0;font-size:.85rem;color:var(--soft)}
.look legend{float:left;padding:0;margin-right:.8rem}
.look label{margin-right:.8rem;white-space:nowrap}
*{box-sizing:border-box}
body{font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;color:var(--ink);
background:var(--paper);margin:0 auto;max-width:1220px;padding:1.5rem 1.25rem 4rem;overflow-wrap:break-word}
h1{font-size:1.9rem;line-height:1.2;margin:.5rem 0}
h2{font-size:1.35rem;border-bottom:2px solid var(--accent);padding-bottom:.25rem;margin:2.6rem 0 1rem}
h3{font-size:1.08rem;margin:1.6rem 0 .5rem}
p{margin:.6rem 0;max-width:75ch}
nav{font-size:.9rem;margin:1rem 0}nav a{margin-right:1rem;color:var(--accent);white-space:nowrap}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:.8rem;margin:1.2rem 0}
.card{background:var(--band);border-left:4px solid var(--accent);padding:.6rem .9rem}
.card b{display:block;font-size:.82rem;color:var(--soft);font-weight:600}
.scroll{overflow-x:auto;margin:1rem 0;background:linear-gradient(90deg,var(--paper) 30%,transparent),
linear-gradient(90deg,transparent,var(--paper) 70%) 100% 0,linear-gradient(90deg,var(--shade),#0000),
linear-gradient(90deg,#0000,var(--shade)) 100% 0;
background-repeat:no-repeat;background-size:40px 100%,40px 100%,12px 100%,12px 100%;
background-attachment:local,local,scroll,scroll}
.slim{display:none}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding:.2rem 0 .4rem;font-size:.9rem}
th,td{padding:.28rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{background:var(--band);font-weight:600}
.word,.long{text-align:left}td.long{white-space:normal;min-width:11rem}
figure{margin:1.4rem 0}figure img{max-width:100%;height:auto;display:block}
figcaption{color:var(--soft);font-size:.9rem;margin-top:.4rem;max-width:75ch}
.equation{margin:.9rem 0 .9rem 1rem;max-width:none;display:flex;flex-wrap:wrap;align-items:center;gap:.6rem 2.2rem}
.equation img{max-width:100%;height:auto}
pre{background:var(--band);padding:.8rem 1rem;overflow-x:auto;font-size:.82rem;line-height:1.4}
code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.92em}
details{margin:.8rem 0}summary{cursor:pointer;color:var(--accent)}
.note{border-left:3px solid #c1652f;padding-left:.8rem}
@media (max-width:700px){.slim{display:block}
body{font-size:15px;padding:1rem .8rem 3rem}h1{font-size:1.45rem}.equation{margin-left:0}
th,td{padding:.25rem .45rem}}
@media print{:root{color-scheme:light !important}.look{display:none}body{max-width:none}details{display:block}}
"""
