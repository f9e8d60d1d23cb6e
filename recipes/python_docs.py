"""Converts Sphinx pages of the Python documentation to plain text: how the files in ``data/python-docs`` were made.

    python -m recipes.python_docs HTML_FOLDER TEXT_FOLDER

A paragraph, list item or table row is one line; code keeps its lines; headings are separate blocks. Navigation, tables
of contents, permalinks and images are removed; typographic quotes become plain ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from bs4 import BeautifulSoup, Tag

PAGES = ("glossary.html", "tutorial/*.html", "faq/*.html", "howto/*.html")
LEFT_OUT = (
    "clinic.html",
    "cporting.html",
    "instrumentation.html",
    "isolating-extensions.html",
    "logging-cookbook.html",
)
"""Excluded how-to guides: those about changing the interpreter, and one that consists mostly of listings."""

_NOISE = "nav, .headerlink, .toctree-wrapper, .footnote-reference, .section-number, .clearer, img, script, style"
_PLAIN_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "\N{NO-BREAK SPACE}": " "})
_SHORTEST_PAGE = 500  # characters; shorter pages contain links only


def convert(html: Path, out: Path) -> list[Path]:
    """Write the text of each selected page; return the written files.

    Args:
        html: HTML folder of the documentation.
        out: Folder to write to.

    Raises:
        ValueError: ``html`` contains none of the pages.
    """
    pages = [page for pattern in PAGES for page in sorted(html.glob(pattern)) if page.name not in LEFT_OUT]
    if not pages:
        raise ValueError(f"{html} holds none of {', '.join(PAGES)}; give the folder of the documentation's HTML.")
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for page in pages:
        text = page_text(page.read_text(encoding="utf-8"))
        if len(text) >= _SHORTEST_PAGE:
            path = out / ("-".join(page.relative_to(html).with_suffix("").parts) + ".txt")
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return written


def page_text(html: str) -> str:
    """Return the text of a page's main part, with blank lines between blocks.

    Raises:
        ValueError: the page has no main part.
    """
    main = BeautifulSoup(html, "html.parser").select_one("[role=main]")
    if main is None:
        raise ValueError("The page has no element of role 'main'; it was not made by Sphinx.")
    for noise in main.select(_NOISE):
        noise.decompose()
    return "\n\n".join(_blocks(main)) + "\n"


def _blocks(parent: Tag) -> Iterator[str]:
    for tag in parent.find_all(True, recursive=False):
        yield from _block(tag)


def _block(tag: Tag) -> Iterator[str]:
    classes = tag.get_attribute_list("class")
    if tag.name == "pre":
        yield tag.get_text().strip("\n")
    elif tag.name in {"ul", "ol"}:
        yield from _list(tag)
    elif tag.name == "dl":
        yield from _glossary(tag) if "glossary" in classes else _definitions(tag)
    elif tag.name == "table":
        yield "\n".join(_row(row) for row in tag.find_all("tr"))
    elif "admonition" in classes or "topic" in classes:
        yield from _titled(tag)
    elif "footnote" in classes:
        yield "Footnote " + _line(tag.select_one(".label") or tag).strip("[]") + ": " + " ".join(map(_line, tag("p")))
    elif tag.name in {"section", "div", "aside", "blockquote"}:
        yield from _blocks(tag)
    elif line := _line(tag):
        yield line


def _list(tag: Tag) -> Iterator[str]:
    """Yield a list; items of one line are not separated, further blocks of an item are indented below it."""
    items = []
    for number, item in enumerate(tag.find_all("li", recursive=False), start=1):
        mark = f"{number}. " if tag.name == "ol" else "- "
        items.append(_hang(mark, list(_blocks(item)) or [_line(item)]))
    apart = "\n\n" if any("\n" in item for item in items) else "\n"
    yield apart.join(items)


def _hang(mark: str, blocks: list[str]) -> str:
    lines = "\n\n".join(blocks).splitlines()
    return "\n".join([mark + lines[0], *(line and " " * len(mark) + line for line in lines[1:])])


def _definitions(tag: Tag) -> Iterator[str]:
    """Yield ``term: first paragraph`` on one line, so that chunking keeps term and definition together."""
    terms: list[str] = []
    for child in tag.find_all(["dt", "dd"], recursive=False):
        if child.name == "dt":
            terms.append(_line(child).rstrip(":"))
        else:
            yield from _lead(", ".join(terms), list(_blocks(child)) or [_line(child)])
            terms = []
    if terms:
        yield ", ".join(terms)


def _glossary(tag: Tag) -> Iterator[str]:
    """Yield each term as a capitalized heading above its definition."""
    for child in tag.find_all(["dt", "dd"], recursive=False):
        if child.name == "dt":
            term = _line(child)
            yield term[:1].upper() + term[1:]
        else:
            yield from _blocks(child)


def _titled(tag: Tag) -> Iterator[str]:
    title = tag.select_one(".admonition-title, .topic-title")
    lead = _line(title) if title is not None else "Note"
    if title is not None:
        title.decompose()
    yield from _lead(lead, list(_blocks(tag)))


def _lead(lead: str, blocks: list[str]) -> Iterator[str]:
    if blocks and "\n" not in blocks[0] and not blocks[0].startswith(("- ", "1. ")):
        yield f"{lead}: {blocks[0]}"
        yield from blocks[1:]
    else:
        yield f"{lead}:"
        yield from blocks


def _row(row: Tag) -> str:
    return " | ".join(_line(cell) for cell in row.find_all(["th", "td"]))


def _line(tag: Tag) -> str:
    return " ".join(tag.get_text().translate(_PLAIN_QUOTES).split())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Python documentation in HTML to clean text files.")
    parser.add_argument("html", type=Path, help="the documentation's HTML folder")
    parser.add_argument("out", type=Path, help="where the text files go")
    given = parser.parse_args()
    written = convert(given.html, given.out)
    sys.stdout.write(f"{len(written)} files, {sum(path.stat().st_size for path in written)} bytes\n")


if __name__ == "__main__":
    main()
