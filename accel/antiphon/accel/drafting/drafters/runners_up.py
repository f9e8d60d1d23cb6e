"""Runners-up: the tokens that the model ranked highest when it last read the same tokens. Knows no texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.drafting.draft import ROOT, Draft, Logits, Tokens
from antiphon.accel.files import write

K = 8
"""How many tokens are kept of each row of logits: Token Recycling's 8."""

NO_TOKEN = -1
"""Stands in a context for a missing token: before the first of a text, or where only the last token counts."""

# How often the r-th best token after a context came next when the context came again. Rank predicts it better than
# probability does; the chance of a token is the mean of both. Measured on greedy answers of SmolLM2-135M.
_HELD = {
    2: np.array([0.62, 0.11, 0.045, 0.02, 0.012, 0.01, 0.008, 0.006], dtype=np.float32),
    1: np.array([0.30, 0.06, 0.045, 0.03, 0.02, 0.015, 0.01, 0.01], dtype=np.float32),
}
_RECURS = {2: 0.7, 1: 0.4}

_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Bigrams:
    """A model's ``K`` best tokens after each of the first tokens of its vocabulary, best first, with their chances.

    Both are of shape (tokens, K).
    """

    tokens: NDArray[np.int32]
    chances: NDArray[np.float32]

    def after(self, last: int) -> dict[int, float]:
        """What comes after this token alone; nothing where that is not known."""
        return _line(self.tokens, self.chances, last) if 0 <= last < len(self.tokens) else {}


class RunnersUp:
    """A table from the last two tokens, and from the last one alone, to the model's ``K`` best next tokens.

    Token Recycling (Luo et al. 2024, arXiv 2408.08696) with a longer context: every row of every forward, accepted or
    not, overwrites the entry of its context, and the entry is drafted from when the context comes again. The table
    holds at most ``entries`` contexts; the one that was written the longest ago is dropped for a new one. An entry
    takes 64 bytes in two arrays and about 250 in the index: some 20 MB when the default is full. Any thread may use
    it at any time.

    For contexts without an entry, ``prior`` has the model's best tokens after the last token alone. It depends on no
    request, and is neither cleared nor saved.

    It belongs to one ``model``, which is a name, and to a vocabulary of one size.

    Raises:
        ValueError: ``entries`` is below 2.
    """

    def __init__(self, model: str = "", *, entries: int = 65_536) -> None:
        if entries < 2:
            raise ValueError(f"entries is {entries}; one row alone needs 2, for its last two tokens and its last one.")
        self.model = model
        self.entries = entries
        self.vocabulary: int | None = None
        self.prior: Bigrams | None = None
        self._slots: OrderedDict[_Key, int] = OrderedDict()
        self._tokens = np.empty((entries, K), dtype=np.int32)
        self._chances = np.empty((entries, K), dtype=np.float32)
        self._lock = Lock()

    @property
    def size(self) -> int:
        """How many contexts are known. There is no ``len``: an empty table would be false where None is meant."""
        return len(self._slots)

    def after(self, before: int, last: int) -> dict[int, float]:
        """What came next after these two tokens, or else after the last: tokens and their chances, best first."""
        with self._lock:
            slot = self._slots.get((before, last))
            if slot is None:
                slot = self._slots.get((NO_TOKEN, last))
            if slot is not None:
                return _line(self._tokens, self._chances, slot)
        return {} if self.prior is None else self.prior.after(last)

    def learn(self, tail: Tokens, draft: Draft, logits: Logits | None) -> None:
        """Read the ``logits`` of one forward: those after ``tail`` and after each row of the draft; None tells nothing.

        Raises:
            ValueError: the logits are of another vocabulary than those before.
        """
        if logits is None or logits.vocabulary < K:
            return
        self.check(logits.vocabulary)
        tokens, chances = logits.top(range(ROOT, len(draft)), K)
        likely = (1.0, *draft.chances)
        order = sorted(
            range(len(likely)), key=likely.__getitem__
        )  # a context that occurs twice keeps what was written last: the likelier row
        after = contexts(tail, draft)
        self.note([after[row] for row in order], tokens[order], chances[order])

    def note(self, after: Sequence[_Key], tokens: NDArray[np.integer[Any]], chances: NDArray[np.float32]) -> None:
        """Overwrite what is known after each context; of equal ones the last counts. Shapes are (contexts, K)."""
        with self._lock:
            for kept, keys in ((1, [(NO_TOKEN, last) for _, last in after]), (2, after)):
                slots = [self._slot(key) for key in keys]
                self._tokens[slots] = tokens
                self._chances[slots] = (_HELD[kept] + _RECURS[kept] * chances) / 2

    def check(self, vocabulary: int) -> None:
        """Refuse logits of another vocabulary than those before.

        Raises:
            ValueError: the size differs.
        """
        self.vocabulary = self.vocabulary or vocabulary
        if vocabulary != self.vocabulary:
            raise ValueError(
                f"This table of runners-up knows the {self.vocabulary:,} tokens of {self.model or 'its model'!r}, and "
                f"this model has {vocabulary:,}; give each model a table of its own."
            )

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._slots.clear()
            self.vocabulary = None

    def save(self, path: str | Path) -> None:
        """Write everything known to a safetensors file, whole or not at all."""
        from safetensors.numpy import save

        path = Path(path)
        with self._lock:
            slots = list(self._slots.values())
            arrays = {
                "contexts": np.array(list(self._slots), dtype=np.int32).reshape(-1, 2),
                "tokens": self._tokens[slots],
                "chances": self._chances[slots],
            }
            written = save(arrays, {"runners_up": "1", "model": self.model, "vocabulary": str(self.vocabulary or 0)})
        write(path, written, is_needed=True)

    @classmethod
    def load(cls, path: str | Path, model: str, *, entries: int = 65_536) -> RunnersUp:
        """The table that was saved there; of more than ``entries`` contexts the newest.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file holds no table, a damaged one, or another model's.
        """
        table = cls(model, entries=entries)
        facts, arrays = _read(Path(path))
        if facts["model"] != model:
            raise ValueError(f"{str(path)!r} holds the runners-up of {facts['model']!r}, not of {model!r}; learn anew.")
        table.vocabulary = int(facts["vocabulary"]) or None
        keys = [(before, last) for before, last in arrays["contexts"][-entries:].tolist()]
        table._slots.update(zip(keys, range(len(keys)), strict=True))
        table._tokens[: len(keys)] = arrays["tokens"][-entries:]
        table._chances[: len(keys)] = arrays["chances"][-entries:]
        return table

    def _slot(self, key: _Key) -> int:
        slot = self._slots.get(key)
        if slot is not None:
            self._slots.move_to_end(key)
            return slot
        slot = self._slots.popitem(last=False)[1] if len(self._slots) == self.entries else len(self._slots)
        self._slots[key] = slot
        return slot


def runners_up_of(drafter: object) -> RunnersUp | None:
    """The table that a drafter drafts from; None where it has none."""
    table = getattr(drafter, "runners_up", None)
    return table if isinstance(table, RunnersUp) else None


def contexts(tail: Tokens, draft: Draft) -> list[_Key]:
    """The last two tokens after ``tail``, and after each row of a draft that hangs from it."""
    before, last = (NO_TOKEN, NO_TOKEN, *tail)[-2:]
    pairs = [(before, last)]
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        pairs.append((last if parent == ROOT else draft.tokens[parent], token))
    return pairs


def _line(tokens: NDArray[np.int32], chances: NDArray[np.float32], line: int) -> dict[int, float]:
    return dict(zip(tokens[line].tolist(), chances[line].tolist(), strict=True))


def _read(path: Path) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """What a saved table says of itself, and its arrays."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"There is no table of runners-up at {str(path)!r}.")
    try:
        with safe_open(path, framework="np") as file:
            facts = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        count, vocabulary = len(arrays["contexts"]), int(facts["vocabulary"])
        shapes = [arrays[name].shape for name in ("contexts", "tokens", "chances")]
        is_whole = facts["runners_up"] == "1" and shapes == [(count, 2), (count, K), (count, K)]
        is_sound = is_whole and np.all(arrays["chances"] > 0) and np.all(arrays["chances"].sum(1) < 1)
        if not is_sound or np.any((arrays["tokens"] < 0) | (arrays["tokens"] >= vocabulary)):
            raise ValueError
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"{str(path)!r} is no table of runners-up, or a damaged one; delete it, and learn anew."
        ) from error
    return facts, arrays
