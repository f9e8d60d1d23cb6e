"""Converts Sphinx pages of the Python documentation to plain text: how the files in ``python-docs`` were made.

    python -m recipes.python_docs HTML_FOLDER TEXT_FOLDER

One paragraph, list item or table row is one line; code keeps its lines; headings stand alone. Navigation, tables of
contents, permalinks and images go; typographic quotes become plain ones. Knows nothing of what the text is for.
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
"""How-to guides for those who change the interpreter itself, and one that is mostly listings."""

_NOISE = "nav, .headerlink, .toctree-wrapper, .footnote-reference, .section-number, .clearer, img, script, style"
_PLAIN_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "\N{NO-BREAK SPACE}": " "})
_SHORTEST_PAGE = 500  # characters; what is shorter is a page of links


def convert(html: Path, out: Path) -> list[Path]:
    """Write the text of every wanted page under ``html`` into ``out`` and say which files were written.

    Raises:
        ValueError: ``html`` holds none of the pages, so it is not the documentation's HTML folder.
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
    """The text of one page's main part, blocks parted by blank lines.

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
    """Items of one line each stand together; an item with more blocks has them under it, indented."""
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
    """``term: first paragraph`` on one line, so that a term never parts from its meaning."""
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
    """Each term as a heading above its meaning, and so with a capital."""
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
    """The command line: two folders."""
    parser = argparse.ArgumentParser(description="Python documentation in HTML to clean text files.")
    parser.add_argument("html", type=Path, help="the documentation's HTML folder")
    parser.add_argument("out", type=Path, help="where the text files go")
    given = parser.parse_args()
    written = convert(given.html, given.out)
    sys.stdout.write(f"{len(written)} files, {sum(path.stat().st_size for path in written)} bytes\n")


if __name__ == "__main__":
    main()
