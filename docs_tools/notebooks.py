"""Notebooks without Jupyter: their text as a page of the site, and their code to run."""

from __future__ import annotations

from typing import Any


def page_of(notebook: dict[str, Any], name: str) -> str:
    """Markdown of a notebook: its words, and its code in blocks that the site runs."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"]).rstrip()
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    title, *rest = parts
    return "\n\n".join([title, f"[Download this notebook]({name}){{ download }}", *rest]) + "\n"
