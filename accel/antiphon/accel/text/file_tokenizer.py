"""A tokenizer from its file, with the library `tokenizers` alone. Transformers is not imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from antiphon.accel.text.template_traits import render, render_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBES = (
    " Bees; 'live' in 2 colonies.\n\n\tÜber 60,000!  ",
    "日本 🐝\u200b e\u0301 <|im_end|></s>[SEP]<unk>",
    "{'a': [1.5]}",
    "",
)
"""Texts on which a tokenizer from a file must agree with transformers' tokenizer."""

FACTS = (
    *("chat_template", "special_tokens_map", "name_or_path", "eos_token", "eos_token_id", "all_special_ids"),
    "clean_up_tokenization_spaces",
)
"""Attributes of transformers' tokenizer that are recorded."""

_CHAT = ({"role": "user", "content": "How do bees live?"}, {"role": "assistant", "content": " In colonies. "})


class EncodedText(dict[str, Any]):
    """The tokens of a text, under the names that transformers' ``BatchEncoding`` uses."""

    @property
    def input_ids(self) -> list[int]:
        """The token ids."""
        ids: list[int] = self["input_ids"]
        return ids


class FileTokenizer:
    """Implements the tokenizer methods that this package calls; all other methods come from transformers' tokenizer.

    Args:
        backend: The tokenizer of the library `tokenizers`, as JSON.
        facts: Attributes of transformers' tokenizer, see `tokenizer_facts`.
        load: Loads transformers' tokenizer; called when it is first needed.
    """

    is_fast = True
    chat_template: str | None
    special_tokens_map: dict[str, str]
    clean_up_tokenization_spaces: bool

    def __init__(self, backend: str, facts: Mapping[str, Any], load: Callable[[], PreTrainedTokenizerBase]) -> None:
        from tokenizers import Tokenizer

        self.__dict__ |= facts
        self.backend_tokenizer = Tokenizer.from_str(backend)
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()
        self._load = load

    @cached_property
    def loaded(self) -> PreTrainedTokenizerBase:
        """Transformers' tokenizer."""
        return self._load()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.loaded, name)

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    def __call__(self, text: Any, **options: Any) -> Any:
        """Return the tokens of a text, with their offsets."""
        if not isinstance(text, str) or options.keys() - {"add_special_tokens", "return_offsets_mapping", "verbose"}:
            return self.loaded(text, **options)
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=options.get("add_special_tokens", True))
        return EncodedText(input_ids=encoded.ids, offset_mapping=encoded.offsets)

    def encode(self, text: Any, **options: Any) -> list[int]:
        """Return the token ids of a text."""
        return list(self(text, **options).input_ids)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Return the text of token ids."""
        cleans = options.get("clean_up_tokenization_spaces", self.clean_up_tokenization_spaces)
        if cleans or not isinstance(token_ids, list) or options.keys() - {"clean_up_tokenization_spaces"}:
            return self.loaded.decode(token_ids, skip_special_tokens=skip_special_tokens, **options)
        return self.backend_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, ids: Any, **options: Any) -> Any:
        """Return the spelling of a token."""
        known: Any = self.backend_tokenizer
        return known.id_to_token(ids) if isinstance(ids, int) else self.loaded.convert_ids_to_tokens(ids, **options)

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Added tokens by id."""
        return dict(self.backend_tokenizer.get_added_tokens_decoder())

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of added tokens by their text."""
        return {each.content: token for token, each in sorted(self.added_tokens_decoder.items())}

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Return messages as transformers renders them, with this object's chat template."""
        loaded: Any = self.loaded
        return loaded.apply_chat_template(conversation, **{"chat_template": self.chat_template} | options)

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """Return the text of messages as the chat template writes them."""
        return render_template(str(self.chat_template), messages, **self.special_tokens_map | variables)


def tokenizer_facts(tokenizer: PreTrainedTokenizerBase) -> tuple[str, dict[str, Any]] | None:
    """Return the data of a `FileTokenizer`, or None if it would not behave like this tokenizer.

    Both tokenizers must give the same results for `PROBES` (tokens, offsets and decoded texts), and
    render messages in the same way.
    """
    template = tokenizer.chat_template
    if not tokenizer.is_fast or not (template is None or isinstance(template, str)):
        return None
    facts = {name: getattr(tokenizer, name) for name in FACTS}
    written = str(tokenizer.backend_tokenizer.to_str())
    own = FileTokenizer(written, facts, lambda: tokenizer)
    try:
        return (written, facts) if _answers(own) == _answers(tokenizer) else None
    except Exception:  # noqa: BLE001 - a tokenizer or template may raise anything
        return None


def _answers(tokenizer: Any) -> list[Any]:
    """Return a tokenizer's results for all probes."""
    found: list[Any] = [len(tokenizer), tokenizer.get_added_vocab()]
    if tokenizer.chat_template is not None:
        found += [render(tokenizer, _CHAT[:end]) for end in (1, 2)]
    for text in PROBES:
        for special in (True, False):
            encoded = tokenizer(text, add_special_tokens=special, verbose=False, return_offsets_mapping=True)
            ids = list(encoded.input_ids)
            found += [ids, encoded["offset_mapping"], tokenizer.encode(text, add_special_tokens=special)]
            found += map(tokenizer.convert_ids_to_tokens, ids)
            for skip in (True, False):
                found.append(tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))
            found.append(tokenizer.decode(ids))
    return found
