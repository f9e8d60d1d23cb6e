"""A block of a text: prose, code, a table or markup."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

Span = tuple[int, int]
"""The start and the end of a piece of text, in characters; the end is exclusive."""


class Markup(Enum):
    """The markup of a text. Fenced code and tables with bars are recognized in plain text, too."""

    PLAIN = "plain"
    MARKDOWN = "markdown"


class BlockKind(Enum):
    """The kind of a block. A block of the kind `MARKUP` structures the text, such as a title with its underline."""

    TEXT = "text"
    CODE = "code"
    TABLE = "table"
    MARKUP = "markup"


@dataclass(frozen=True, slots=True)
class Block:
    """A block: the characters ``start`` to ``end`` of a text, and their kind.

    A code block includes its fences. If the closing fence is missing, the block extends to the end of the text.
    """

    kind: BlockKind
    start: int
    end: int
