"""What the site adds to its pages: output and figures of their code, typeset formulas, notebooks as pages.

Code is run when the site is built and kept in out/docs under a name made of the page and of all sources, so that only
pages whose code or library changed run again. WIDTHWISE_DOCS=text builds without running anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import posixpath
import sys
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mathematics import typeset
from mkdocs.structure.files import File, Files
from notebooks import page_of
from page_runner import Block, blocks_of, run_page

from widthwise.version import __version__

ROOT = Path(__file__).parent.parent
#: Files from packages: address on the site, and where the package has it.
_FONT = "assets/STIXTwoMath-Regular.ttf"


def on_config(config: Any, **_: Any) -> Any:
    """The version that the pages are about stands at their foot. Links to sources are made below, for notebooks too."""
    config["copyright"] = f"widthwise {__version__}"
    config["edit_uri"] = None
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Notebooks become pages, and the font of formulas comes along."""
    import ziamath.fonts

    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        content = page_of(json.loads(notebook.read_text()), notebook.name)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=content))
    font = Path(ziamath.fonts.__file__).with_name("STIXTwoMath-Regular.ttf")
    files.append(File.generated(config, _FONT, content=font.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    if os.environ.get("WIDTHWISE_DOCS") == "text" or not blocks_of(markdown):
        return markdown
    name = page.file.src_uri
    pieces, place = [], 0
    for number, block in enumerate(_run_or_kept(markdown, name)):
        pieces += [markdown[place : block.end], _shown(block, page, number)]
        place = block.end
    return "".join(pieces) + markdown[place:]


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """Formulas are typeset, and the foot of a page says which file to edit."""
    source = Path("docs", page.file.src_uri)
    if source.parent.name == "notebooks":
        source = source.with_suffix(".ipynb")
    words = f"Edit this page: <code>{escape(str(source))}</code>"
    if config.repo_url:
        words = f'<a href="{escape(f"{config.repo_url}/edit/main/{source}", quote=True)}">{words}</a>'
    return f'{typeset(html)}<p class="source">{words}</p>'


def on_post_build(config: Any, **_: Any) -> None:
    for address, svg in _MADE.items():
        target = Path(config["site_dir"]) / address
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(svg)


#: Figures that the code of pages drew, by address.
_MADE: dict[str, str] = {}


def _shown(block: Block, page: Any, number: int) -> str:
    """What a block printed and drew, as it stands in the page."""
    shown = ""
    if block.printed.strip():
        shown += f'\n\n<pre class="printed" tabindex="0"><code>{escape(block.printed.rstrip())}</code></pre>\n'
    for index, (words, svg) in enumerate(block.figures):
        address = f"made/{page.file.src_uri.removesuffix('.md')}-{number}-{index}.svg"
        _MADE[address] = svg
        link = posixpath.relpath(address, posixpath.dirname(page.url.rstrip("/") + "/index.html"))
        shown += f'\n\n<p class="made"><img src="{link}" alt="{escape(words, quote=True)}"></p>\n'
    return shown


def _run_or_kept(markdown: str, name: str) -> list[Block]:
    key = hashlib.sha256(_sources() + "".join(block.code for block in blocks_of(markdown)).encode()).hexdigest()[:20]
    file = ROOT / "out" / "docs" / f"{name.replace('/', '-')}-{key}.pickle"
    if file.exists():
        kept = pickle.loads(file.read_bytes())
    else:
        print(f"running the code of {name}", file=sys.stderr, flush=True)
        kept = run_page(markdown, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(kept))
    # text around the code may have moved
    return [Block(new.language, new.code, new.end, old.printed, old.figures)
            for new, old in zip(blocks_of(markdown), kept, strict=True)]  # fmt: skip


def _sources() -> bytes:
    """All code that a page could show the work of."""
    digest = hashlib.sha256()
    for file in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "docs_tools").glob("*.py")]):
        digest.update(file.read_bytes())
    return digest.digest()
