"""Examples in docstrings that stand outside of an Examples section become blocks of code with their output.

Without it Markdown takes `>>>` for a quotation within a quotation within a quotation.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


def fenced(text: str) -> str:
    """Paragraphs that begin with >>> between fences; in others, the star of K* is no emphasis.

    >>> print(fenced("Words.\\n\\n>>> 1 + 1\\n2\\n\\nMore."))
    Words.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    More.
    """
    parts = re.split(r"(\n\s*\n)", text)
    for index, part in enumerate(parts):
        if part.lstrip().startswith(">>>"):
            parts[index] = f"```pycon\n{part.strip(chr(10))}\n```"
        else:
            parts[index] = re.sub(r"(`[^`]*`)|(?<=[Kz])\*(?!\*)", lambda found: found[1] or r"\*", part)
    return "".join(parts)


class FencedExamples(griffe.Extension):
    """Applies `fenced` to every docstring without an Examples section."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and "Examples\n--------" not in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
