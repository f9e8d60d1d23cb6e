"""Replace control characters, which could control a terminal or reorder a line, by visible characters.

Every displayed text passes through `sanitize`, in the terminal, in HTML and in Markdown. Each output format also
escapes its own markup.
"""

from __future__ import annotations

import json

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# C0 controls, except line feed and tab, are replaced by their Unicode control pictures (U+2400 and following).
_REPLACED = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
# DEL and the C1 controls: U+009B alone begins an escape sequence, as ESC [ does.
_REPLACED |= dict.fromkeys(range(0x7F, 0xA0), REPLACEMENT)
# Bidirectional control characters display a line in another order (Boucher and Anderson, "Trojan Source").
_REPLACED |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], REPLACEMENT)
# Lone surrogates, from file names that are not UTF-8: no terminal and no page can encode them.
_REPLACED |= dict.fromkeys(range(0xD800, 0xE000), REPLACEMENT)

# In JSON the same characters are escaped and keep their value; `json` escapes the C0 controls itself.
_ESCAPED = {code: f"\\u{code:04x}" for code in _REPLACED if code >= 0x7F}


def sanitize(text: str) -> str:
    """Replace control characters, bidirectional controls and unpaired surrogates; the length stays the same."""
    return text.translate(_REPLACED)


def sanitize_line(text: str) -> str:
    """Return the sanitized text as one line, so that a name with a line feed cannot appear as two lines."""
    return sanitize(text).translate({ord("\n"): "\N{SYMBOL FOR LINE FEED}", ord("\t"): " "})


def sanitize_json(value: object) -> str:
    """Return the value as one line of JSON, with control characters escaped."""
    return json.dumps(value, ensure_ascii=False).translate(_ESCAPED)
