"""Request plans: prompt, references and options of a request, decided before generation.

The command line, Python, chats, the server, LangChain and LlamaIndex all build the plan with `plan_request` and execute
it, so the same question about the same passages gets the same answer everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from antiphon.accel import PrefixCache, TextModel
from antiphon.accel.text.completion import TextStream
from antiphon.accel.text.messages import CountedPrompt, Message, PromptInput, ReferenceInput, TokenizedPrompt
from antiphon.accel.text.thinking_switch import asks_about_thinking
from antiphon.pipelines.citations import Citation
from antiphon.pipelines.fitted_prompt import FittedPrompt, PromptBuilder
from antiphon.pipelines.markers import MarkedStream, cite_all
from antiphon.pipelines.passage_selection import best_quote, select_lines
from antiphon.pipelines.prompt import (
    REFUSAL,
    Prompt,
    PromptFormat,
    chat_prompt,
    follows_instructions,
    prompt_format,
    reader_prompt,
)
from antiphon.pipelines.question import Question
from antiphon.pipelines.quotes import Quote
from antiphon.retrieval import Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_NEW_TOKENS = 1024
"""Default of ``max_new_tokens`` for answers from documents, if the model follows instructions."""

MAX_QUOTED_TOKENS = 256
"""The default for models that quote, are small, or have no chat template; such models often do not end by
themselves."""

_LETTERS_PER_TOKEN = 4  # estimated, for models whose tokenizer only their server has


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """The prompt, references and options of one request.

    Attributes:
        passages: the passages that the answer may cite; the passages in the prompt come first.
        prompt: the prompt as text or messages.
        tokenized: the prompt's tokens, or only their number if only the model's server can
            tokenize.
        references: the references for drafting: spans of the prompt, and texts that the prompt does
            not contain.
        response_prefix: the text that the answer starts with; empty if the model writes the whole answer.
        num_marked: the first ``num_marked`` passages have a number in the prompt; 0: the answer has
            no `markers`.
        quote: function that returns the best quote of the passages; None: answers of this model have no quote.
        parameters: further parameters of `LanguageModel.stream`.
        prefix: the KV cache that already holds a part of the prompt; None if there is none.
        dropped_messages: how many of the oldest messages did not fit into the prompt.
        thinking: whether the prompt makes the model think; None: the chat template's default.
    """

    passages: tuple[Passage, ...]
    prompt: Prompt
    tokenized: TokenizedPrompt | CountedPrompt
    references: tuple[ReferenceInput, ...]
    response_prefix: str = ""
    stop: tuple[str, ...] = ()
    num_marked: int = 0
    quote: Callable[[], Citation | None] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    prefix: PrefixCache | None = None
    dropped_messages: int = 0
    thinking: bool | None = None
    model: str = ""

    @property
    def prompt_tokens(self) -> Sequence[int]:
        """The tokens of the prompt; empty if only the model's server knows them, or there is no language model."""
        return self.tokenized.tokens if isinstance(self.tokenized, TokenizedPrompt) else ()

    def start(self, language_model: TextModel, *, prefix: PrefixCache | None = None, **parameters: Any) -> TextStream:
        """Return the stream of the answer.

        Args:
            prefix: the KV cache of the conversation, used if the plan has no ``prefix``.
            **parameters: parameters of `LanguageModel.stream` that are not part of the plan.
        """
        own = {"response_prefix": self.response_prefix} if self.response_prefix else {}
        stream = language_model.stream(
            self.tokenized,
            references=self.references,
            prefix=self.prefix if self.prefix is not None else prefix,
            stop=self.stop,
            **{**own, **self.parameters, **parameters},
        )
        return MarkedStream(stream, self.passages[: self.num_marked]) if self.num_marked else stream

    def cite(self, text: str) -> tuple[Citation, ...]:
        """Return the citations of an answer's text: spans that are quoted verbatim from a passage, and markers."""
        return cite_all(text, self.passages, self.num_marked)


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The conversation before a question, and further references for drafting.

    Attributes:
        history: the earlier messages of user and assistant, oldest first, without passages.
        similar_answers: answers to similar questions, used as references for drafting.
    """

    history: Sequence[Message] = ()
    instructions: Sequence[Message] = ()
    references: Sequence[str] = ()
    similar_answers: Sequence[str] = ()

    @classmethod
    def of(cls, messages: Sequence[Message], references: Sequence[str] = ()) -> TurnContext:
        """Return the context of earlier messages; messages of tools are left out.

        Args:
            messages: the earlier messages, oldest first.
        """
        history = [message for message in messages if message["role"] in ("user", "assistant")]
        instructions = [message for message in messages if message["role"] == "system"]
        return cls(history, instructions, references)


NO_CONTEXT = TurnContext()
"""The context of a single question."""


def plan_text(
    language_model: TextModel,
    prompt: PromptInput,
    references: Sequence[Passage],
    parameters: Mapping[str, Any],
) -> RequestPlan:
    """Return the plan for a text generated without retrieval; it may cite the passages in ``references``.

    Args:
        references: the caller's passages, which are also references for drafting.
        parameters: options of `LanguageModel.stream`.
    """
    options = dict(parameters)
    stop = tuple(_strings(options.pop("stop", None)))
    return RequestPlan(
        passages=tuple(references),
        prompt=Prompt(""),
        tokenized=language_model.tokenize(prompt),
        references=tuple(passage_references(references)),
        stop=stop,
        parameters=options,
        model=language_model.name,
    )


def plan_request(
    language_model: TextModel,
    question: Question,
    passages: Sequence[Passage],
    *,
    context: TurnContext = NO_CONTEXT,
    prompt: PromptFormat | None = None,
    prefix_of: Callable[[Passage], PrefixCache] | None = None,
    **generation: Any,
) -> RequestPlan:
    """Return the plan for a question and its retrieved passages.

    For the models `extractive` and `reader`, lines of the passages are selected (see
    `passage_selection`). Their prompt contains no conversation, so it has the complete form of a
    follow-up question. Any other model gets the conversation and then all passages in one prompt.
    If this prompt exceeds the context window, the oldest messages are dropped first, then passages.

    Args:
        passages: the retrieved passages, best first; at least one.
        prompt: a prompt format in place of the model's own; if it is given, no lines are selected.
        prefix_of: function that returns the prefix cache of a passage; called with the first
            passage if the prompt starts with it.
        **generation: options of `LanguageModel.stream`: ``max_new_tokens`` (see `default_max_new_tokens`),
            ``temperature``, ``stop``, ... The model does not think unless ``thinking`` is set.

    Raises:
        ValueError: not even the best passage fits the context window.
    """
    found, form = tuple(passages), prompt or prompt_format(language_model)
    if generation.get("max_new_tokens") is None:
        generation["max_new_tokens"] = default_max_new_tokens(language_model)
    builder = PromptBuilder(
        language_model,
        form,
        question,
        generation["max_new_tokens"] + (generation.get("max_thinking_tokens") or 0),
        context.history,
        context.instructions,
        *_template_options(generation),
    )
    if prompt is None and form is reader_prompt:
        selected, quotes = select_lines(
            question,
            found,
            history=context.history,
            max_tokens=generation["max_new_tokens"],
            count_tokens=partial(_count_tokens, language_model),
        )
        fitted = builder.build(selected)
        own = fitted.passages  # without passages that do not fit
        options = _quoting_options(generation, [quote for quote in quotes if quote.number <= len(own)])
        citable = (*own, *(each for each in found if not any(each is one for one in own)))
        best, starts_with_passage = None, True
    else:
        builder, fitted = builder.build_with_history(found)
        options, citable = generation, fitted.passages
        writes = follows_instructions(language_model)
        best = partial(best_quote, question, citable, context.history) if writes else None
        starts_with_passage = form is chat_prompt and not builder.history
    has_cache = isinstance(fitted.tokenized, TokenizedPrompt)  # no prompt that another process tokenizes has one here
    prefix = prefix_of(citable[0]) if prefix_of and starts_with_passage and has_cache else None
    return replace(_plan(builder, fitted, options, citable, context), quote=best, prefix=prefix)


def default_max_new_tokens(language_model: TextModel) -> int:
    """Return the default of ``max_new_tokens``. It is larger for models that follow instructions."""
    return MAX_NEW_TOKENS if follows_instructions(language_model) else MAX_QUOTED_TOKENS


def _quoting_options(generation: Mapping[str, Any], quotes: Sequence[Quote]) -> Mapping[str, Any]:
    """Return options that make the answer start with the quotes, or make it a refusal if there are no quotes.

    Options of the caller that set the form or the beginning of the answer have priority.
    """
    if generation.get("json_schema") is not None or generation.get("response_prefix"):
        return generation
    if quotes:
        return {**generation, "response_prefix": "\n".join(quote.line for quote in quotes)}
    stop = [*_strings(generation.get("stop")), "\n"]  # nothing follows a refusal
    return {**generation, "response_prefix": REFUSAL, "stop": stop}


def _count_tokens(language_model: TextModel, text: str) -> int:
    if language_model.tokenizer is None:
        return 1 + len(text) // _LETTERS_PER_TOKEN
    return len(language_model.tokenizer.encode(text, add_special_tokens=False))


def _strings(stop: str | Sequence[str] | None) -> Sequence[str]:
    return (stop,) if isinstance(stop, str) else stop or ()


def _template_options(generation: dict[str, Any]) -> tuple[bool | None, Mapping[str, Any]]:
    """Remove the chat template's options from ``generation`` and return these options; thinking is off by default."""
    thinking, variables = generation.pop("thinking", None), generation.pop("template_variables", None) or {}
    return (False if thinking is None and not asks_about_thinking(variables) else thinking), variables


def _plan(
    builder: PromptBuilder,
    fitted: FittedPrompt,
    options: Mapping[str, Any],
    citable: tuple[Passage, ...],
    context: TurnContext,
) -> RequestPlan:
    """Return the plan of a prompt whose answer may cite the passages ``citable``."""
    parameters = dict(options)
    references = [*(fitted.prompt.answers or passage_references(fitted.passages)), *context.references]
    references += answer_references(context.similar_answers, fitted.tokenized, builder.language_model.tokenizer)
    stop = _strings(parameters.pop("stop", None))
    return RequestPlan(
        passages=citable,
        prompt=fitted.prompt,
        tokenized=fitted.tokenized,
        references=tuple(_span_or_text(fitted.tokenized, each) for each in dict.fromkeys(references)),
        response_prefix=parameters.pop("response_prefix", None) or "",
        stop=(*stop, *fitted.prompt.stop),
        num_marked=len(fitted.passages) if fitted.prompt.has_markers and not parameters.get("json_schema") else 0,
        parameters=parameters,
        dropped_messages=len(context.history) - len(builder.history),
        thinking=builder.thinking,
        model=builder.language_model.name,
    )


def _span_or_text(prompt: TokenizedPrompt | CountedPrompt, text: str) -> ReferenceInput:
    """Return the span of a prompt that contains a text, or the text itself if the prompt does not contain it."""
    return (prompt.span_of(text) if isinstance(prompt, TokenizedPrompt) else None) or text


PROMPT_TAIL = 4
"""Number of prompt tokens put before an earlier answer, so that a drafter finds it when the new answer starts.

With fewer tokens, the passages match better there. With more tokens, the earlier answer is
preferred even if it is wrong.
"""


def passage_references(passages: Sequence[Passage]) -> list[str]:
    """Return the texts of passages without duplicates, best first.

    If two references match equally well, drafters prefer the earlier one.
    """
    return list(dict.fromkeys(passage.text for passage in passages))


def answer_references(
    answers: Sequence[str], prompt: PromptInput, tokenizer: PreTrainedTokenizerBase | None
) -> list[str]:
    """Return earlier answers as continuations of a prompt.

    A reference consists of the prompt's last tokens, the answer and the end-of-sequence token.

    Put these references after the passages: if two references match equally well, drafters prefer
    the earlier one.

    Args:
        prompt: the prompt; if it is not tokenized, the answers are returned as texts.
    """
    if not answers:
        return []
    if tokenizer is None or not isinstance(prompt, TokenizedPrompt):
        return list(dict.fromkeys(answers))
    tail = tokenizer.decode(list(prompt.tokens[-PROMPT_TAIL:]))
    return [f"{tail}{answer}{tokenizer.eos_token or ''}" for answer in dict.fromkeys(answers)]
