"""Text made safe to show: what would steer a terminal, or reorder a line, is replaced by a sign that can be seen.

Every text that is shown passes through here, whatever the medium. Escaping markup is the medium's own.
"""

from __future__ import annotations

import json

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# C0 controls but for line feed and tab have pictures of their own (U+2400 and on).
_SHOWN = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
# DEL and the C1 controls: U+009B alone begins an escape sequence, as ESC [ does.
_SHOWN |= dict.fromkeys(range(0x7F, 0xA0), REPLACEMENT)
# Embeddings, overrides and isolates make a line read other than it stands (Boucher and Anderson, "Trojan Source").
_SHOWN |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], REPLACEMENT)
# Lone surrogates, from file names that are not UTF-8: no terminal and no page can encode them.
_SHOWN |= dict.fromkeys(range(0xD800, 0xE000), REPLACEMENT)

# The same in JSON, where escapes say what a character is and show nothing; `json` writes the C0 controls so itself.
_ESCAPED = {code: f"\\u{code:04x}" for code in _SHOWN if code >= 0x7F}


def visible(text: str) -> str:
    """The text, as long as it was, with every control, bidirectional or unpaired character replaced by a sign."""
    return text.translate(_SHOWN)


def visible_line(text: str) -> str:
    """The same in one line: a name with a line feed in it cannot pass for two lines."""
    return visible(text).translate({ord("\n"): "\N{SYMBOL FOR LINE FEED}", ord("\t"): " "})


def visible_json(value: object) -> str:
    """The value as JSON in one line, that reads back as it was; what would steer a terminal is escaped in it."""
    return json.dumps(value, ensure_ascii=False).translate(_ESCAPED)
