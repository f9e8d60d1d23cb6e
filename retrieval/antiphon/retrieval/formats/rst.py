"""Read reStructuredText: docutils converts it to HTML, and the HTML reader reads the result.

Docutils does not know many directives and roles of Sphinx. Their texts are kept, but texts that
Sphinx would generate are not added.
"""

from __future__ import annotations

import re
from copy import copy
from itertools import chain, dropwhile
from textwrap import dedent
from typing import Any, ClassVar

from docutils import nodes
from docutils.core import publish_parts
from docutils.parsers.rst import Directive, Parser, directives, states, tableparser
from docutils.parsers.rst.directives import misc, tables
from docutils.statemachine import StringList
from docutils.transforms import Transform

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.html import read_html_body
from antiphon.retrieval.formats.text import decode_text

_SETTINGS = {
    "_disable_config": True,  # no docutils.conf of the current folder
    "docinfo_xform": False,
    "doctitle_xform": False,
    "file_insertion_enabled": False,
    "halt_level": 5,
    "initial_header_level": 1,
    "input_encoding": "unicode",
    "line_length_limit": 10**9,
    "raw_enabled": False,
    "report_level": 5,
    "stylesheet_path": "",
    "traceback": True,  # raise errors instead of printing them and ending the process
}
_ERROR = 3  # the level of the messages that stand for a text which docutils cannot parse
_VERSIONS = {
    "deprecated": "Deprecated since version",
    "versionadded": "New in version",
    "versionchanged": "Changed in version",
    "versionremoved": "Removed in version",
}
_BORDER = re.compile("[=-][ =-]*")  # of a row of a simple table
_OPTION = re.compile(r"\s*:[\w-]+:(?:\s|$)")
_ROLE = re.compile(r":[\w:.+-]+:`(.+)`", re.DOTALL)
_WITH_TARGET = re.compile(r"(.*\S)\s+<[^<>]+>", re.DOTALL)


def read_rst_document(data: bytes, source: str) -> Document:
    """Read a reStructuredText file, without its comments. Included files are reported, not read.

    Raises:
        ValueError: The bytes are binary, or docutils cannot parse the text.
    """
    decoded, includes = decode_text(data), list[str]()
    settings = {**_SETTINGS, "includes": includes}
    try:
        html = publish_parts(decoded.text, parser=_Parser(), writer="html5", settings_overrides=settings)["html_body"]
    except (RecursionError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"docutils cannot parse it ({type(error).__name__}: {error})") from error
    document = read_html_body(html, source)
    warnings = (*decoded.warnings, *(f"its {each} was not resolved; index that file as well" for each in includes))
    return Document(document.text, source, {}, document.headings, code=document.code, warnings=warnings)


class _Options(dict[str, Any]):
    """The options of a docutils directive; other options are accepted, too."""

    def __missing__(self, name: str) -> Any:
        return directives.unchanged


class _Prose(Directive):
    """A directive such as ``note``: both its argument and its content are prose."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec = _Options(name=directives.unchanged)

    @property
    def argument(self) -> list[str]:
        """The lines after the name of the directive."""
        return self.arguments[0].splitlines() if self.arguments else []

    @property
    def lines(self) -> list[str]:
        """The lines of prose."""
        return [*self.argument, "", *self.content]

    def run(self) -> list[nodes.Node]:
        # The text becomes a part of the text around the directive, and may contain section titles.
        lines, parent = StringList(self.lines, self.name), self.state_machine.node
        self.state.nested_parse(lines, self.content_offset, parent, match_titles=True)
        return []


class _Content(_Prose):
    """A directive whose argument is not text of the document, such as ``only`` with its condition."""

    @property
    def lines(self) -> list[str]:
        return [*self.content]


class _Version(_Prose):
    """A directive about a version, such as ``versionadded``."""

    @property
    def lines(self) -> list[str]:
        version, _, text = " ".join(self.argument).partition(" ")
        return [f"{_VERSIONS[self.name]} {version}{':' if text or self.content else '.'} {text}", *self.content]


class _Description(_Prose):
    """A directive that describes the object that its argument names, such as ``function``.

    Unknown directives are read in the same way.
    """

    def run(self) -> list[nodes.Node]:
        if not self.argument:
            return super().run()
        body = nodes.definition()
        self.state.nested_parse(self.content, self.content_offset, body)
        names = [
            self.state.inline_text(line, self.lineno)[0] if "`" in line else [nodes.Text(line)]
            for line in self.argument
        ]
        if not body.children:
            return [nodes.paragraph("", "", *name) for name in names]
        terms = [nodes.term("", "", *name) for name in names]
        return [nodes.definition_list("", nodes.definition_list_item("", *terms, body))]


class _Code(_Prose):
    """A directive with code. The code follows the options."""

    def run(self) -> list[nodes.Node]:
        below = dropwhile(_OPTION.match, self.block_text.splitlines()[1:])
        code = dedent("\n".join(below)).strip("\n") or "\n".join(self.argument)
        caption = self.options.get("caption")
        above = [nodes.paragraph(caption, caption)] if caption else []
        return [*above, nodes.literal_block(code, code)]


class _Hidden(_Prose):
    """A directive without text in this file, such as a table of contents."""

    def run(self) -> list[nodes.Node]:
        if self.name in ("include", "literalinclude"):
            self.state.document.settings.includes.append(f"{self.name} of {' '.join(self.argument)}")
        return [nodes.inline()] if isinstance(self.state, states.SubstitutionDef) else []


def _with_any_option(kind: type[Directive]) -> type[Directive]:
    return type(kind.__name__, (kind,), {"option_spec": _Options(kind.option_spec or {})})


_NAMES: dict[type[Directive], str] = {
    _Prose: "attention caution danger error hint important note seealso tip todo warning",
    _Content: "class container currentmodule figure ifconfig module only program rst-class tags",
    _Version: " ".join(_VERSIONS),
    _Code: "code code-block doctest graphviz highlight-code-block ipython ipython-input jupyter-execute math mermaid "
    "parsed-literal plot productionlist prompt sourcecode testcode testoutput testsetup",
    _Hidden: "autosummary contents date default-domain default-role highlight image include index literalinclude meta "
    "raw role sectionauthor sectnum tabularcolumns testcleanup toctree",
    _with_any_option(tables.RSTTable): "table",
    _with_any_option(tables.CSVTable): "csv-table",
    _with_any_option(tables.ListTable): "list-table",
    misc.Replace: "replace",
    misc.Unicode: "unicode",
}
_DIRECTIVES = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def _run_directive(state: Any, match: re.Match[str], **presets: Any) -> Any:
    """Run a directive whose first line has matched, with this module's class for its name.

    ``state`` is the parser's state.
    """
    name = match[1].rpartition(":")[2].lower()
    return state.run_directive(_DIRECTIVES.get(name, _Description), match, name, presets)


_EXPLICIT = copy(states.Body.explicit)
_EXPLICIT.constructs = [
    (_run_directive if method is states.Body.directive else method, pattern)
    for method, pattern in states.Body.explicit.constructs
]


class _State(states.RSTState):
    """A state of the parser with the directives of this module."""

    nested_sm_cache: ClassVar[list[Any]] = []  # type: ignore[misc]  # not shared with other parsers
    explicit = _EXPLICIT
    directive = _run_directive

    def table_top(self, match: Any, context: Any, next_state: Any, isolate: Any, parser_class: Any) -> Any:
        """Read a table; simple tables with the parser of this module."""
        parser = _SimpleTableParser if parser_class is tableparser.SimpleTableParser else parser_class
        return super().table_top(  # type: ignore[misc]  # of `states.Body`
            match, context, next_state, isolate, parser
        )

    def __init__(self, state_machine: Any, debug: bool = False) -> None:
        super().__init__(state_machine, debug)
        self.nested_sm_kwargs = {"state_classes": _STATES, "initial_state": "Body"}


class _SimpleTableParser(tableparser.SimpleTableParser):
    """The parser of simple tables; a row with an empty first cell is read, even if it is the first row."""

    def setup(self, block: Any) -> None:
        super().setup(block)
        is_first = True
        for place, line in enumerate(self.block):
            if is_first and line.strip():
                self.block[place] = line if line[0].strip() else f"\u200b{line[1:]}"  # docutils skips the line
            is_first = bool(_BORDER.fullmatch(line)) or (is_first and not line.strip())


_STATES = tuple(type(state.__name__, (_State, state), {}) for state in states.state_classes)


class _Parser(Parser):
    """A parser of docutils with the directives of this module. Other parsers do not get these directives."""

    def __init__(self) -> None:
        super().__init__()
        self.state_classes = _STATES

    def get_transforms(self) -> list[type[Transform]]:
        return [*super().get_transforms(), _KeepTexts]


class _KeepTexts(Transform):
    """Change a tree so that its HTML has all texts, even texts that cannot be parsed, but no messages of docutils."""

    default_priority = 850  # before docutils removes messages with the texts that they quote

    def apply(self) -> None:
        tree: Any = self.document
        for message in [*tree.findall(nodes.system_message)]:
            texts = [*message.findall(nodes.literal_block)] if message["level"] >= _ERROR else []
            message.parent.replace(message, texts)
        for problem in [*tree.findall(nodes.problematic)]:
            if role := _ROLE.fullmatch(problem.rawsource):
                problem.parent.replace(problem, nodes.Text(_role_text(role[1])))
        for text in [*tree.findall(nodes.title_reference), *tree.findall(nodes.math)]:
            text.parent.replace(text, nodes.Text(_role_text(text.astext())))
        for note in [*tree.findall(nodes.footnote), *tree.findall(nodes.citation)]:
            note.parent.replace(note, _with_label(f"[{note[0].astext()}] ", note[1:]))
        for fields in [*tree.findall(nodes.field_list)]:
            texts = [_with_label(f"{name.astext()}: ", body.children) for name, body in fields]
            fields.parent.replace(fields, [*chain.from_iterable(texts)])
        for title in [*tree.findall(nodes.title)]:
            if isinstance(table := title.parent, nodes.table):
                table.remove(title)
                table.parent.insert(table.parent.index(table), nodes.paragraph("", "", *title))
        for classifier in tree.findall(nodes.classifier):
            classifier.insert(0, nodes.Text(" : "))
        for element in tree.findall(nodes.Element):
            element["ids"], element["classes"] = [], []  # else the HTML reader could skip the element


def _role_text(text: str) -> str:
    """Return the part of a role's text that Sphinx shows: no target, and no modules after ``~``."""
    if found := _WITH_TARGET.fullmatch(text):
        return found[1]
    return text.rpartition(".")[2].removeprefix("~") if text.startswith("~") else text.removeprefix("!")


def _with_label(label: str, body: list[nodes.Node]) -> list[nodes.Node]:
    """Return nodes with a label in front of their text."""
    first = body[0] if body and isinstance(body[0], nodes.paragraph) else nodes.paragraph()
    first.insert(0, nodes.Text(label))
    return [first, *(node for node in body if node is not first)]
