"""Remove the markup of Markdown, MyST, reStructuredText and HTML from quotes for display.

The text of an answer keeps the markup, so that citations can be verified character by character.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_DIRECTIVES = {
    "versionadded": "New in version ",
    "versionchanged": "Changed in version ",
    "deprecated": "Deprecated since version ",
}
_PAIRED_TAGS = (
    "a|abbr|b|big|blockquote|center|code|dd|del|details|div|dl|dt|em|font|h[1-6]|i|ins|kbd|li|mark|ol|p|pre|s|samp|small|"
    "span|strong|sub|summary|sup|table|tbody|td|th|thead|tr|tt|u|ul|var"
)
_RULE = r"""([=~^"'`#*+_\-])\1{3,}"""
_TARGET = re.compile(r"^(.*\S)\s+<[^<>]+>$", re.DOTALL)


def _role_text(match: re.Match[str]) -> str:
    """Return the displayed text of a role: its title without the target; for ``~a.b.c`` the last name."""
    text = match["text"].strip()
    if found := _TARGET.match(text):
        return found[1]
    return text.rpartition(".")[2] if text.startswith("~") else text.removeprefix("!")


def _link_text(match: re.Match[str]) -> str:
    found = _TARGET.match(match["text"])
    return found[1] if found else match["text"]


def _directive(match: re.Match[str]) -> str:
    name = match["name"]
    if name in _DIRECTIVES:
        return _DIRECTIVES[name]
    return "" if match["rest"] or name not in ("note", "tip", "warning", "important") else f"{name.capitalize()}:"


_Replacement = str | Callable[[re.Match[str]], str]
_REPLACEMENTS: tuple[tuple[re.Pattern[str], _Replacement], ...] = (
    # Fences of code and of directives, targets and comments: whole lines.
    (re.compile(r"^[ \t]*(?:`{3,}|~{3,}|:{3,})[ \t]*[\w{}.:+-]*[ \t]*$\n?", re.MULTILINE), ""),
    (re.compile(r"^[ \t]*(?:\.\. _[^\n]*:|\([\w-]+\)=)[ \t]*$\n?", re.MULTILINE), ""),
    (re.compile(r"<!--.*?-->", re.DOTALL), ""),
    # Underlines of headings and horizontal rules: on a separate line, or after text.
    (re.compile(rf"^[ \t]*{_RULE}[ \t]*$\n?", re.MULTILINE), ""),
    (re.compile(rf"(?<=\S)[ \t]{_RULE}(?=\s|$)"), ""),
    (re.compile(r"^[ \t]*#{2,6}[ \t]+", re.MULTILINE), ""),
    (re.compile(r"^[ \t]*\.\. (?P<name>[\w-]+)::[ \t]*(?P<rest>(?=\S)?)", re.MULTILINE), _directive),
    # Roles and links.
    (re.compile(r"\{[a-z][\w:.+-]*\}`(?P<text>[^`\n]+)`"), _role_text),
    (re.compile(r"(?<![\w:]):[A-Za-z][\w:.+-]*:`(?P<text>[^`]+)`"), _role_text),
    (re.compile(r"(?<![`\w])`(?P<text>[^`]+)`__?(?!\w)"), _link_text),
    (re.compile(r"!\[(?P<text>[^\]\[]*)\]\([^()\s]*(?:\s+\"[^\"]*\")?\)"), r"\g<text>"),
    (re.compile(r"\[(?P<text>[^\]\[]+)\]\([^()\s]*(?:\([^()\s]*\))?(?:\s+\"[^\"]*\")?\)"), r"\g<text>"),
    (re.compile(r"\[(?P<text>[^\]\[]+)\]\[[\w .-]*\]"), r"\g<text>"),
    (re.compile(r"\[\^[\w-]+\]|\{[#.][\w .#=-]+\}"), ""),
    (re.compile(r"<((?:https?|mailto):[^<>\s]+)>"), r"\1"),
    # Tags: opening ones only with their closing tag, because <name> is often a placeholder.
    (re.compile(r"</?(?:br|hr|img|wbr)\b[^<>]*>", re.IGNORECASE), " "),
    (re.compile(rf"<(?:{_PAIRED_TAGS})\s[^<>]*>", re.IGNORECASE), ""),
    (re.compile(rf"<({_PAIRED_TAGS})>(?=.*</\1>)", re.IGNORECASE | re.DOTALL), ""),
    (re.compile(rf"</(?:{_PAIRED_TAGS})>", re.IGNORECASE), ""),
    # Code and emphasis.
    (re.compile(r"(?<!`)(`{1,2})(?!`)(?P<text>[^`]+?)(?<!`)\1(?!`)"), r"\g<text>"),
    (re.compile(r"(?<![\w*\\])(\*{1,3})(?=[^\s*])(?P<text>[^*\n]*[^\s*\\])\1(?![\w*])"), r"\g<text>"),
    (re.compile(r"(?<![\w_])__(?=[^\s_])(?P<text>[^_\n]* [^_\n]*[^\s_])__(?![\w_])"), r"\g<text>"),
    (re.compile(r"\\([*_`\[\]<>|~#])"), r"\1"),
)


def without_markup(text: str) -> str:
    """Return a quote without markup: roles, links, tags, fences, underlines of headings, marks of code and emphasis.

    Names such as ``__init__``, placeholders such as ``<name>`` and arguments such as ``**options`` are kept.
    """
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text
