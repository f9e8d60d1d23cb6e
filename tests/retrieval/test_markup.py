"""Markdown and MyST are parsed by their own rules."""

import time
from pathlib import Path

import pytest

from antiphon.retrieval import Document, HashEmbedder, chunk_document
from antiphon.retrieval.block import BlockKind
from antiphon.retrieval.formats.markup import read_markdown_document
from antiphon.retrieval.segmentation import blocks
from tests.retrieval.sample_files import read_document

count = HashEmbedder().count_tokens


def markdown(text: str) -> Document:
    return read_markdown_document(text.encode(), "a.md")


@pytest.mark.parametrize(
    "matter",
    [
        "---\ntitle: The Hive\nyear: 1998\n---\n",
        "---\r\ntitle: The Hive\r\nyear: 1998\r\n...\r\n",
        "+++\ntitle = 'The Hive'\nyear = 1998\n+++\n",
    ],
)
def test_front_matter_becomes_metadata_and_its_title_that_of_the_document(matter: str) -> None:
    document = markdown(f"{matter}\nBees dance.\n")
    assert document.text == "\nBees dance.\n"
    assert document.metadata == {"title": "The Hive", "year": 1998}
    assert [passage.metadata["title"] for passage in chunk_document(document, count)] == ["The Hive"]


@pytest.mark.parametrize(
    "text",
    ["---\nJust prose.\n---\n", "---\n- a\n- b\n---\n", "---\n[: no\n---\n", "+++\nno toml\n+++\n", "---\ntitle: a\n"],
)
def test_what_is_no_front_matter_stays_text(text: str) -> None:
    assert markdown(text).text == text
    assert markdown(text).metadata == {}


def test_front_matter_that_expands_without_end_is_left_out() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]\n"
        for before, name in zip("abcdefghi", "bcdefghij", strict=True)
    )
    before = time.process_time()
    metadata = markdown(f"---\n{bomb}---\nText.").metadata
    assert "j" not in metadata
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One.\n\n<!-- secret\n\nsecret -->\n\nTwo.\n", "One.\n\nTwo.\n"),
        ("One <!-- secret --> two.\n", "One  two.\n"),
        ("<!-- secret -->One.\n", "One.\n"),
        ("> One <!-- secret -->\n> two.\n", "> One \n> two.\n"),
        ("[//]: # (secret)\n\nOne.\n", "One.\n"),
        ("One `<!-- code -->` and <!-- secret --> two.\n", "One `<!-- code -->` and  two.\n"),
        ("```html\n<!-- code -->\n```\n", "```html\n<!-- code -->\n```\n"),
        ("    <!-- code -->\n", "    <!-- code -->\n"),
        ("[bees]: # \n[wax]: wax.md 'Wax'\n", "[bees]: # \n[wax]: wax.md 'Wax'\n"),
        ("One <!-- no end\n", "One <!-- no end\n"),
        ("% of all bees\n", "% of all bees\n"),
    ],
)
def test_comments_of_markdown_are_not_text(text: str, expected: str) -> None:
    assert markdown(text).text == expected


def test_headings_survive_front_matter_comments_and_a_byte_order_mark() -> None:
    document = markdown("\ufeff---\na: b\n---\n<!-- c -->\n# One\n\ntext <!--\nd --> end\n\nTwo\nlines\n===\n")
    assert [(heading.level, heading.title) for heading in document.headings] == [(1, "One"), (1, "Two lines")]
    assert [document.text[heading.start : heading.end] for heading in document.headings] == ["# One", "Two\nlines\n==="]


@pytest.mark.parametrize(
    "text", ["    # code\n", "- # item\n", "> # quote\n", "#hashtag\n", "<pre>\n# html\n</pre>\n", "```\n# code\n"]
)
def test_lines_that_only_look_like_headings_are_none(text: str) -> None:
    assert markdown(text).headings == ()


MYST = """(label)=
# Bees

```{tip} Keep calm
:class: dropdown

Bees dance. They like wax.
```

% a comment

:::{note}
Wax melts.
:::

````{admonition} Outer
```{code-block} python
dance()
```
After code.
````

End.
"""


def test_admonitions_of_myst_are_prose_and_their_code_is_code() -> None:
    kinds = {MYST[block.start : block.end]: block.kind for block in blocks(MYST)}
    [code] = [text for text, kind in kinds.items() if kind is BlockKind.CODE]
    assert code == "```{code-block} python\ndance()\n```\n"
    text = markdown(MYST).text
    assert [line for line in text.splitlines() if line] == [
        "# Bees",
        "Keep calm",
        "Bees dance. They like wax.",
        "Wax melts.",
        "Outer",
        *code.splitlines(),
        "After code.",
        "End.",
    ]


def test_includes_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("# Bees\n\n```{include} ../wax.md\n```\n")
    assert read_document(path).warnings == ("its include of ../wax.md was not resolved; index that file as well",)
