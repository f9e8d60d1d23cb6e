"""The command `antiphon ask`: answers one question from an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.pipelines.cli import console, options
from antiphon.pipelines.cli.console import Stopwatch, seconds_since_process_start
from antiphon.pipelines.cli.index_location import index_of
from antiphon.pipelines.cli.preparation import (
    note_missing_switch,
    preload_encoders,
    prepare_model,
    read_template,
    sessions_in,
)
from antiphon.pipelines.question import Question
from antiphon.pipelines.rendering.sanitize import sanitize_json
from antiphon.pipelines.tracing import start_traces
from antiphon.retrieval.postgres.address import shown_location

if TYPE_CHECKING:
    from antiphon.pipelines.answer import AnswerStream

NOTHING_DECODED = (
    "--drafting has no effect: the answer was quoted without a language model; choose one, such as --model smollm2."
)


def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    paths: options.Paths = None,
    index: options.Index = None,
    model: options.AskedModel = options.ASKED_MODEL,
    k: Annotated[int, typer.Option("--k", "-k", help="Number of passages in the prompt.")] = 5,
    where: options.Where = None,
    max_new_tokens: options.MaxNewTokens = None,
    prompt: options.PromptFile = None,
    quote: options.Quote = True,
    thinking: options.Thinking = None,
    max_thinking_tokens: options.MaxThinkingTokens = None,
    drafter: options.Drafter = "blend",
    bita: options.Bita = None,
    window: options.Window = None,
    num_draft_tokens: options.NumDraftTokens = None,
    plain: Annotated[bool, typer.Option("--plain", help="Decode without drafts (--drafter nothing).")] = False,
    temperature: Annotated[float, typer.Option(help="0 decodes greedily; above 0 the answer is sampled.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Random seed of sampling.")] = None,
    stop: options.Stop = None,
    device: options.Device = None,
    engine: options.EngineOption = "auto",
    weights: options.FewBits = None,
    sessions: options.Sessions = None,
    drafting: options.Drafting = False,
    trace: options.Trace = "none",
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole answer as one JSON object.")] = False,
) -> None:
    """Answer a question: stream the answer, then print its citations and its cost."""
    stopwatch = Stopwatch(seconds_since_process_start())
    asked = Question(question)  # checked before anything is loaded
    condition, template = options.where_filter(where), read_template(prompt, model)
    load_model = prepare_model(model, device=device, engine=engine, weights=weights)
    from antiphon.pipelines.models.drafters import resolve_drafter, window_size

    size = window_size(window) if window else None
    factory = resolve_drafter("nothing") if plain else resolve_drafter(drafter, bita=bita, window=size)
    location = index_of(paths, index)
    start_traces(trace)
    if model == options.EXTRACTIVE:
        preload_encoders()
    with console.status(f"Opening {shown_location(location)}"):
        from antiphon.pipelines.prompt import template_prompt
        from antiphon.pipelines.rag import Rag
        from antiphon.retrieval import Retriever

        retriever = Retriever.open(location, device=device)
        store = sessions_in(sessions, retriever)
    language_model = load_model(factory)
    if factory == "auto":
        console.show_choice(language_model)
    note_missing_switch(language_model, thinking)
    with console.status("Searching"):
        form = template_prompt(template, language_model) if template else None
        rag = Rag(retriever, language_model, k=k, prompt=form, sessions=store, quote_first=quote)
        stream = rag.stream(
            asked,
            where=condition,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            stop=stop,
            seed=seed,
            num_draft_tokens=num_draft_tokens,
            thinking=thinking,
            max_thinking_tokens=max_thinking_tokens,
        )
    _show(stream, stopwatch, drafting=drafting, as_json=as_json)
    if model == options.EXTRACTIVE and not as_json:
        console.show_suggestion()


def _show(stream: AnswerStream, stopwatch: Stopwatch, *, drafting: bool, as_json: bool) -> None:
    """Print an answer while it streams, then its citations and its cost, or print it as JSON.

    With ``drafting``, also print how the answer was decoded, unless the output is JSON.
    """
    if as_json:
        typer.echo(sanitize_json(stream.to_end().answer.as_dict()))
        return
    console.show_stream(stream, stopwatch)
    answer = stream.answer
    console.show_citations(answer)
    console.show_cost(answer, stopwatch)
    if drafting and answer.steps.steps:
        console.out.print(answer.decoding_trace)
    elif drafting:
        console.err.print(NOTHING_DECODED, style="dim", markup=False)
