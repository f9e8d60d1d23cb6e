"""reStructuredText: literal blocks are code, tables keep their cells, directives and roles their texts."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.retrieval import Document, HashEmbedder
from antiphon.retrieval.formats.rst import read_rst_document
from tests.retrieval.sample_files import read_document

count = HashEmbedder().count_tokens
LINES = st.sampled_from(
    [
        *("", "wax", "~~~", "====", "wax melts::", "    wax = 3", "  - a", ".. note:: now", "   :class: x", ">>> wax"),
        *(".. code-block:: sh", "=== ===", "+---+", "| a |", ".. _wax:", "::", "\t", "\r", ".. option:: --wax", ".."),
        *(
            ".. only:: html",
            "   honey",
            "   ----",
            ":ref:`wax`",
            "`wax",
            "|wax|",
            ".. |wax| image:: w",
            "[1]_",
            ".. [1] x",
        ),
    ]
)


def rst(text: str) -> Document:
    return read_rst_document(text.encode(), "a.rst")


def code_of(document: Document) -> list[str]:
    return [document.text[start:end] for start, end in document.code]


@example("=== ===\n    wax = 3\n=== ===")  # docutils drops the first row if its first cell is empty
@given(st.lists(LINES, max_size=30).map("\n".join))
def test_any_lines_can_be_read_and_lose_no_words(text: str) -> None:
    document = rst(text)
    assert all(document.text[each.start : each.end] == each.title for each in document.headings)
    comments = re.search(r"^\s*\.\.(\s|$)", text, re.MULTILINE)
    if "::" not in text and not comments:
        assert document.text.count("wax") == text.count("wax")


@pytest.mark.parametrize("mark", ["~", "=", "-", "^", "`", ":", "'", '"', "+", "*", "#"])
def test_an_underlined_title_is_a_heading(mark: str) -> None:
    over = f"{mark * 5}\nHoney\n{mark * 5}\n\nKeeps.\n"
    under = f"Wax\n{mark * 3}\n\nWax *melts*. It is\nyellow.\n"
    for text, title in ((over, "Honey"), (under, "Wax")):
        assert [(each.level, each.title) for each in rst(text).headings] == [(1, title)]
    assert rst(under).text == "Wax\n\nWax melts. It is yellow."


def test_the_first_use_of_an_underline_sets_the_level_and_inline_markup_is_left_out() -> None:
    document = rst(":func:`wax`\n===========\n\nA\n--\n\nB ``c``\n-------\n\nD\n^^\n\nE\n=\n")
    assert [(each.level, each.title) for each in document.headings] == [
        (1, "wax"),
        (2, "A"),
        (2, "B c"),
        (3, "D"),
        (1, "E"),
    ]


@pytest.mark.parametrize("name", ["note", "tip", "versionadded", "py:function", "seealso", "only", "unknown"])
@pytest.mark.parametrize("options", ["", "   :class: wide\n   :one: 1\n"])
def test_the_text_of_a_directive_is_prose(name: str, options: str) -> None:
    text = rst(f".. {name}:: 3.1\n{options}\n   It is\n   *yellow*.\n\nEnd.\n").text
    shown = {"versionadded": "New in version 3.1:", "py:function": "3.1 :", "unknown": "3.1 :", "only": ""}
    assert text.split() == f"{shown.get(name, '3.1')} It is yellow. End.".split()


@pytest.mark.parametrize("name", ["code-block", "code", "sourcecode", "prompt", "doctest", "parsed-literal"])
def test_code_of_a_directive_and_below_a_double_colon_is_code(name: str) -> None:
    text = (
        f"Run:\n\n.. {name}:: sh\n   :linenos:\n   :caption: make.sh\n\n   make\n\n     make test\n\nThen::\n\n  ls\n\n"
        "or\n\n::\n\n cd\n\n>>> 1\n1\n\n.. math:: a^2\n\nEnd."
    )
    document = rst(text)
    assert code_of(document) == ["make\n\n  make test", "ls", "cd", ">>> 1\n1", "a^2"]
    assert [line for line in document.text.splitlines() if line.endswith((".", ":", "sh", "or"))] == [
        *("Run:", "make.sh", "Then:", "or", "End."),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One.\n\n.. secret\n   secret\n\n   secret\n\nTwo.\n", "One.\n\nTwo."),
        ("One.\n\n..\n   secret\n\nTwo.\n", "One.\n\nTwo."),
        ("- One\n\n  .. secret\n\n- Two\n", "- One\n\n- Two"),
        (".. note:: One.\n\n   .. secret\n\n   Two.\n", "One.\n\nTwo."),
        ("::\n\n   .. code\n\nTwo.\n", ".. code\n\nTwo."),
        (".. _bees: https://bees.org\n.. |x| replace:: *y*\n\n.. _wax:\n\n|x| bees_ `wax`_\n", "y bees wax"),
        (".. image:: wax.png\n   :alt: Wax\n\n.. toctree::\n\n   wax\n\n.. raw:: html\n\n   <b>x</b>\n\nEnd.", "End."),
        (".. |br| raw:: html\n\n   <br>\n\n.. |i| image:: i.png\n\nOne |br| two |i|.", "One two ."),
        (".. figure:: wax.png\n   :alt: Wax\n\n   Caption.\n\n   Legend.", "Caption.\n\nLegend."),
        (".. _cookie-banner:\n\nEat.\n\n.. class:: navbar\n\nMore.", "Eat.\n\nMore."),
        ("Wax [1]_ melts [A]_.\n\n.. [1] At 64.\n.. [A] See B.", "Wax [1] melts [A].\n\n[1] At 64.\n\n[A] See B."),
        (":param x: It is\n   x.\n:flag:\n", "param x: It is x.\n\nflag:"),
        ("Term : int\n   It is.\n\n-a  All.\n", "Term : int\n: It is.\n\n-a\n: All."),
        (".. py:function:: f(*a, **k)\n              g(*b)\n\n   Does.", "f(*a, **k)\ng(*b)\n: Does."),
        (
            ".. versionchanged:: 3.2 Now *x*.\n.. deprecated:: 4",
            "Changed in version 3.2: Now x.\n\nDeprecated since version 4.",
        ),
        (".. only:: html\n\n   Wax\n   ---\n\n   Melts.\n\nEnd.", "Wax\n\nMelts.\n\nEnd."),
    ],
)
def test_what_is_text_and_what_is_not(text: str, expected: str) -> None:
    assert rst(text).text == expected


@pytest.mark.parametrize(
    ("role", "shown"),
    [
        (":ref:`The wax <wax-label>`", "The wax"),
        (":py:meth:`~bees.Hive.open`", "open"),
        (":func:`bees.dance`", "bees.dance"),
        (":func:`!dance`", "dance"),
        (":math:`\\chi^2`", "\\chi^2"),
        (":unknown:`text`", "text"),
        ("``a  *b*``", "a *b*"),
        ("`wax <https://wax.org>`_", "wax"),
    ],
)
def test_roles_show_their_text(role: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rst(f"See {role}.").text == f"See {shown}."
    assert capsys.readouterr() == ("", "")


SIMPLE = "=====  =====\nHive   Bees\n=====  =====\noak    many\n       more\npine   few\n=====  =====\n"
GRID = (
    "+------+------------+\n| Hive | Bees       |\n+======+============+\n"
    "| oak  | many and   |\n|      | more       |\n+------+------------+\n"
)
LIST = ".. list-table:: Our hives\n   :header-rows: 1\n   :widths: auto\n   :foo: 1\n\n" + "".join(
    f"   * - {one}\n     - {other}\n" for one, other in (("Hive", "Bees"), ("oak", "many"), ("pine", "few"))
)
CSV = ".. csv-table::\n   :header: Hive, Bees\n\n   oak, many\n   pine, few\n"


def test_tables_keep_their_cells() -> None:
    head, oak, pine = "| Hive | Bees |\n|---|---|\n", "| oak | many |", "| pine | few |"
    assert rst(SIMPLE).text == f"{head}| oak | many more |\n{pine}"
    assert rst(GRID).text == f"{head}| oak | many and more |"
    assert rst(LIST).text == f"Our hives\n\n{head}{oak}\n{pine}"
    assert rst(CSV).text == f"{head}{oak}\n{pine}"


@pytest.mark.parametrize(
    "text",
    [
        "===  ===\nwax melts\n===  ===\n",
        ".. table:: wax melts\n\n   no table\n",
        ".. list-table::\n   :header-rows: x\n\n   * - wax\n     - melts\n",
        ".. replace:: wax melts",
        ".. note::\n   :class: a\n   :class: b\n\n   wax melts",
    ],
)
def test_what_docutils_refuses_is_kept(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = rst(f"Bees dance.\n\n{text}\n\nEnd.").text
    assert ("wax" in shown, "melts" in shown) == (True, True)
    assert shown.endswith("End.")
    assert capsys.readouterr() == ("", "")


def test_files_are_not_read_but_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docutils.conf").write_text("[general]\nfile_insertion_enabled: yes\n")
    path = tmp_path / "a.rst"
    path.write_text(
        "Bees\n====\n\n.. include:: /etc/passwd\n\n.. literalinclude:: wax.py\n   :lines: 1-3\n\n"
        ".. csv-table::\n   :file: /etc/passwd\n\n.. raw:: html\n   :file: /etc/passwd\n"
    )
    document = read_document(path)
    assert document.warnings == (
        "its include of /etc/passwd was not resolved; index that file as well",
        "its literalinclude of wax.py was not resolved; index that file as well",
    )
    assert "root:" not in document.text
