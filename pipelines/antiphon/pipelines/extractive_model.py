"""The extractive model, which answers with quotes from the passages, and the choice of a model by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.accel import Completion, Summary, TextModel, Usage
from antiphon.accel.remote.server import is_address
from antiphon.accel.text.completion import Piece, TextStream
from antiphon.accel.text.messages import CountedPrompt, PromptInput, TokenizedPrompt
from antiphon.accel.text.parameters import Settings
from antiphon.pipelines.prompt import REFUSAL

EXTRACTIVE = "extractive"
"""Name of this model on the command line and in answers."""

ONLY_QUOTES = (
    f"The model {EXTRACTIVE!r} quotes lines of the passages and cannot write a text of its own; for {{}} choose a "
    "language model, such as --model smollm2, a folder, or an instruct model of the hub."
)

_WITHOUT_EFFECT = ("references", "prefix", "recycling", "seeds", "batch_size")


class ExtractiveModel:
    """A `TextModel` that answers with its argument ``response_prefix``: the lines selected from the passages."""

    name = EXTRACTIVE
    tokenizer = None
    context_window = None
    takes_messages = True
    num_parameters = 0
    prompt_format = "reader"

    def tokenize(self, prompt: PromptInput) -> CountedPrompt:
        """Return the prompt with a token count of zero."""
        if isinstance(prompt, CountedPrompt):
            return prompt
        return CountedPrompt(prompt.text if isinstance(prompt, TokenizedPrompt) else prompt, 0)

    def stream(self, prompt: PromptInput, **parameters: Any) -> QuotedStream:
        """Return the ``response_prefix`` as a stream, or a refusal if there is none.

        Raises:
            ValueError: a JSON schema is given, or an option is out of range.
        """
        settings = Settings(**{name: value for name, value in parameters.items() if name not in _WITHOUT_EFFECT})
        if settings.json_schema is not None:
            raise ValueError(ONLY_QUOTES.format("JSON"))
        return QuotedStream(settings.response_prefix or REFUSAL)

    def generate(self, prompt: PromptInput, **parameters: Any) -> Completion:
        """Return the completion; see `stream`."""
        return self.stream(prompt, **parameters).to_end().completion

    def generate_batch(self, prompts: Sequence[PromptInput], **parameters: Any) -> list[Completion]:
        """Return the completion of each prompt; see `stream`."""
        return [self.generate(prompt, **parameters) for prompt in prompts]


class QuotedStream(TextStream):
    """A stream of one piece, the quotes or a refusal; it has no generated tokens."""

    prompt_tokens = reasoning_tokens = 0

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces = iter([Piece(text)])

    def next_piece(self) -> Piece | None:
        """Return the text once, then None."""
        return next(self._pieces, None)

    def close(self) -> None:
        """Yield no further piece."""
        self._pieces = iter([])

    @property
    def completion(self) -> Completion:
        """The completion, without generated tokens."""
        return Completion(self._text, "stop", Usage(0, 0), Summary(), (), response_prefix=self._text)


def text_model(model: TextModel | str | None, **settings: Any) -> TextModel:
    """Return a language model, loaded if it is given by name.

    Args:
        model: a model, which is returned unchanged, or a name: ``extractive``, a bundled model, a
            folder, a GGUF file, a name on the hub, or a server's address. None means
            ``extractive``, which quotes the documents without a language model.
        **settings: arguments of `LanguageModel.from_pretrained`, or of `RemoteLanguageModel`.

    Raises:
        ValueError: there is no such model; see `resolve_model`.
    """
    if model is None or model == EXTRACTIVE:
        return ExtractiveModel()
    if not isinstance(model, str):
        return model
    from antiphon.accel import LanguageModel, RemoteLanguageModel, resolve_model

    if is_address(model):
        return RemoteLanguageModel(model, **settings)
    resolve_model(model)  # raises an error that explains what is wrong with the name
    return LanguageModel.from_pretrained(model, **settings)
