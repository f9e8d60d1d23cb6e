"""Quotes are displayed without markup, and what only looks like markup is kept."""

from __future__ import annotations

import pytest

from antiphon.pipelines.rendering.plain_quotes import without_markup


@pytest.mark.parametrize(
    ("quote", "shown"),
    [
        ("Put it into :file:`.flaskenv` first.", "Put it into .flaskenv first."),
        ("See :py:func:`~flask.Flask.run` and :ref:`the guide <guide>`.", "See run and the guide."),
        ("Call {py:func}`attrs.define`, or {doc}`this <init>`.", "Call attrs.define, or this."),
        ("Disable dotenv ~~~~~~~~~~~~~~ Flask reads it.", "Disable dotenv Flask reads it."),
        ("Disable dotenv\n--------------\nFlask reads it.", "Disable dotenv\nFlask reads it."),
        ("Only the voice\n</summary>", "Only the voice\n"),
        ("<b>Never</b> do <a href='x'>this</a>.<br>", "Never do this. "),
        ("Read [the docs](docs/a.md#b) or [this][1], **now** and *here*.", "Read the docs or this, now and here."),
        ("`Jinja <https://jinja.example>`_ renders, see `templates`_.", "Jinja renders, see templates."),
        (".. versionadded:: 2.0", "New in version 2.0"),
        (".. note::\n   Keep it.", "Note:\n   Keep it."),
        ("```{tip}\nKeep it.\n```", "Keep it.\n"),
        (r"Use \*args\* and \_x.", "Use *args* and _x."),
        ("Some text.[^1] {#anchor}", "Some text. "),
    ],
)
def test_markup_is_removed(quote: str, shown: str) -> None:
    assert without_markup(quote) == shown


@pytest.mark.parametrize(
    "quote",
    [
        "def f(*args, **options): return f(**a, **b)",
        "The method __init__ and the name __all__ stay.",
        "git clone <url> and kill <code>",
        "a * b * c and 2**3**4",
        "# a comment of a shell",
        "[1] The queen lays eggs. [2] So it is.",
        "--out DIR and -m FNAME",
    ],
)
def test_what_only_looks_like_markup_is_kept(quote: str) -> None:
    assert without_markup(quote) == quote
