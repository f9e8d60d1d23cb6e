"""A tokenizer from its file, by the library `tokenizers` alone. It imports no transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from antiphon.accel.text.template_renderer import render_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBES = (
    " Bees; 'live' in 2 colonies.\n\n\tÜber 60,000!  ",
    "日本 🐝\u200b e\u0301 <|im_end|></s>[SEP]<unk>",
    "{'a': [1.5]}",
    "",
)
"""Texts on which a tokenizer from a file must agree with transformers' tokenizer."""

_CHAT = ({"role": "user", "content": "How do bees live?"}, {"role": "assistant", "content": " In colonies. "})


class EncodedText(dict[str, Any]):
    """The tokens of a text by the names of transformers' ``BatchEncoding``."""

    @property
    def input_ids(self) -> list[int]:
        """The token ids."""
        ids: list[int] = self["input_ids"]
        return ids


class FileTokenizer:
    """The methods of transformers' tokenizers that this package calls; all others come from transformers' tokenizer.

    Args:
        backend: The tokenizer of the library `tokenizers`, as JSON.
        facts: What `tokenizer_facts` returns.
        load: Loads transformers' tokenizer, when something else of it is first needed.
    """

    is_fast = True

    def __init__(self, backend: str, facts: Mapping[str, Any], load: Callable[[], PreTrainedTokenizerBase]) -> None:
        from tokenizers import Tokenizer

        self.backend_tokenizer = Tokenizer.from_str(backend)
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()
        self.chat_template: str | None = facts["chat_template"]
        self.special_tokens_map: dict[str, str] = facts["special_tokens_map"]
        self.name_or_path: str = facts["name_or_path"]
        self.eos_token: str | None = self.special_tokens_map.get("eos_token")
        self.eos_token_id: int | None = facts["eos_token_id"]
        self.all_special_ids: list[int] = facts["all_special_ids"]
        self.clean_up_tokenization_spaces: bool = facts["clean_up_tokenization_spaces"]
        self._load = load

    @cached_property
    def loaded(self) -> PreTrainedTokenizerBase:
        """Transformers' tokenizer."""
        return self._load()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loaded":
            raise AttributeError(name)
        return getattr(self.loaded, name)

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    def __call__(
        self,
        text: Any,
        *,
        add_special_tokens: bool = True,
        return_offsets_mapping: bool = False,
        verbose: bool = True,
        **options: Any,
    ) -> Any:
        """Return the tokens of a text."""
        own = {"add_special_tokens": add_special_tokens, "return_offsets_mapping": return_offsets_mapping}
        if options or not isinstance(text, str):
            return self.loaded(text, verbose=verbose, **own, **options)
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return EncodedText(input_ids=encoded.ids, offset_mapping=encoded.offsets)

    def encode(self, text: Any, *, add_special_tokens: bool = True, **options: Any) -> list[int]:
        """Return the token ids of a text."""
        if options or not isinstance(text, str):
            ids: list[int] = self.loaded.encode(text, add_special_tokens=add_special_tokens, **options)
            return ids
        return list(self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **options: Any,
    ) -> Any:
        """Return the text of token ids."""
        is_list = isinstance(token_ids, list | tuple) and all(isinstance(token, int) for token in token_ids)
        cleans = self.clean_up_tokenization_spaces if clean_up_tokenization_spaces is None else True
        if options or not is_list or (cleans and clean_up_tokenization_spaces is not False):
            return self.loaded.decode(
                token_ids,
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=clean_up_tokenization_spaces,
                **options,
            )
        return self.backend_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, ids: int | Sequence[int], skip_special_tokens: bool = False) -> Any:
        """Return the spelling of a token, or of each of several tokens."""
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        skipped = self.all_special_ids if skip_special_tokens else ()
        return [self.backend_tokenizer.id_to_token(int(each)) for each in ids if int(each) not in skipped]

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Added tokens by id."""
        return dict(self.backend_tokenizer.get_added_tokens_decoder())

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of added tokens by their text."""
        return {each.content: token for token, each in sorted(self.added_tokens_decoder.items())}

    def apply_chat_template(self, conversation: Any, *, tokenize: bool = True, **options: Any) -> Any:
        """Return the text of messages as the chat template writes them; the tokens if ``tokenize``."""
        others = options.keys() & _ARGUMENTS
        if tokenize or others or self.chat_template is None or not _is_plain_chat(conversation, options.get("tools")):
            tokenizer: Any = self.loaded
            return tokenizer.apply_chat_template(
                conversation, tokenize=tokenize, **{"chat_template": self.chat_template} | options
            )
        return render_template(
            self.chat_template, conversation, **{"add_generation_prompt": False} | self.special_tokens_map | options
        )


_ARGUMENTS = {"chat_template", "continue_final_message", "sanitize_control_tokens", "return_assistant_tokens_mask"} | {
    *("padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs")
}
"""Arguments of ``apply_chat_template`` that are left to transformers."""


def _is_plain_chat(conversation: Any, tools: Any) -> bool:
    is_chat = isinstance(conversation, list | tuple) and len(conversation) > 0
    return is_chat and all(isinstance(each, dict) for each in (*conversation, *(tools or ())))


def tokenizer_facts(tokenizer: PreTrainedTokenizerBase) -> tuple[str, dict[str, Any]] | None:
    """Return what a `FileTokenizer` is made from, or None if it would not equal this tokenizer.

    Both are compared by probes: texts with special tokens, their offsets and decoded tokens, and rendered messages.
    """
    template = tokenizer.chat_template
    if not tokenizer.is_fast or not (template is None or isinstance(template, str)):
        return None
    backend: Any = tokenizer
    facts = {
        "chat_template": template,
        "special_tokens_map": dict(tokenizer.special_tokens_map),
        "name_or_path": str(tokenizer.name_or_path),
        "eos_token_id": tokenizer.eos_token_id,
        "all_special_ids": list(tokenizer.all_special_ids),
        "clean_up_tokenization_spaces": bool(tokenizer.clean_up_tokenization_spaces),
    }
    written: str = backend.backend_tokenizer.to_str()
    own = FileTokenizer(written, facts, lambda: tokenizer)
    try:
        return (written, facts) if _answers(own) == _answers(tokenizer) else None
    except Exception:  # noqa: BLE001 - a tokenizer or template may raise anything
        return None


def _answers(tokenizer: Any) -> list[Any]:
    """Return what a tokenizer answers to each probe."""
    found: list[Any] = [len(tokenizer), tokenizer.get_added_vocab(), tokenizer.eos_token, tokenizer.eos_token_id]
    if tokenizer.chat_template is not None:
        found += [
            tokenizer.apply_chat_template(list(_CHAT[:end]), tokenize=False, add_generation_prompt=True)
            for end in (1, 2)
        ]
    for text in PROBES:
        for special in (True, False):
            encoded = tokenizer(text, add_special_tokens=special, verbose=False, return_offsets_mapping=True)
            ids = list(encoded.input_ids)
            found += [ids, encoded["offset_mapping"], tokenizer.encode(text, add_special_tokens=special)]
            found.append(tokenizer.convert_ids_to_tokens(ids))
            for skip in (True, False):
                found.append(tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))
            found.append(tokenizer.decode(ids))
    return found
