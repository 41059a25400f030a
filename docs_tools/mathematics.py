"""Formulas of a page: TeX between dollar signs becomes MathML, and displayed ones are numbered by section.

MathML needs no script in the reader's browser and is read aloud by screen readers. A formula that cannot be
translated stops the build.
"""

from __future__ import annotations

import re
from html import escape, unescape

from latex2mathml.converter import convert

_ARITHMATEX = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]</(?P=tag)>', flags=re.S
)
_SECTION = re.compile(r'<h2 id="[^"]*">§(\d+)')


def typeset(html: str) -> str:
    """The page with its formulas as MathML; the k-th displayed one of section s is (s.k), with an anchor eq-s-k."""
    pieces, place, section, count = [], 0, "", 0
    marks = sorted([*_SECTION.finditer(html), *_ARITHMATEX.finditer(html)], key=lambda mark: mark.start())
    for mark in marks:
        pieces.append(html[place : mark.start()])
        place = mark.end()
        if mark.re is _SECTION:
            section, count = mark[1], 0
            pieces.append(mark[0])
        elif mark["open"] == "(":
            pieces.append(mathml(mark["tex"], "inline"))
        else:
            count += 1
            number = f"{section}.{count}" if section else str(count)
            pieces.append(
                f'<div class="equation" id="eq-{number.replace(".", "-")}"><div class="formula" tabindex="0">'
                f'{mathml(mark["tex"], "block")}</div><span class="number">({number})</span></div>'
            )
    return "".join(pieces) + html[place:]


def mathml(tex: str, display: str) -> str:
    """One formula; `display` is inline or block.

    >>> mathml("K_{ab}", "inline").startswith("<math")
    True
    """
    tex = unescape(tex).strip()
    try:
        made = convert(tex, display=display)
    except Exception as error:
        raise ValueError(f"formula {tex!r}: {type(error).__name__}: {error}") from error
    if "\\" in made:  # an unknown command comes back as it is
        raise ValueError(f"formula {tex!r}: not translated: {made}")
    return made.replace("<math ", f'<math alttext="{escape(tex, quote=True)}" ', 1)
