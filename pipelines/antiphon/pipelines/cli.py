"""The command line. Heavy imports stand inside the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from antiphon.pipelines import console
from antiphon.pipelines.benchmark.cli import app as bench
from antiphon.pipelines.bita.cli import app as bita
from antiphon.pipelines.embedded import EMBEDDED, STOPS
from antiphon.pipelines.lookahead_cli import lookahead
from antiphon.pipelines.options import Device, Index, MaxNewTokens, Precision, Rows, Sessions
from antiphon.pipelines.preparation import dtype_named, index_documents, load_language_model, sessions_in, show_index
from antiphon.pipelines.reader.cli import app as reader

DEFAULT_MODEL = "reader"
MODEL_HELP = "reader, smollm2, a folder (of a model, or of an adapter for smollm2) or a hub name."
DRAFTER_HELP = (
    "Who drafts: blend, trie, copying, recycling, lookahead, blend+lookahead, nothing; auto: what suits the model "
    "here, with the reason; bita, blend+bita, blend+bita+lookahead: for smollm2; or a file that BiTA learned."
)
BAD_INPUT = 2
"""The exit code where something that was given cannot be used."""


class Commands(TyperGroup):
    """Commands whose errors about what was given are one sentence on standard error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; with ``--traceback`` an error shows where it came from."""
        try:
            return super().invoke(ctx)
        except (ValueError, TypeError, OSError, ImportError) as error:
            if ctx.params.get("traceback"):
                raise
            console.err.print(f"antiphon: {error}", style="red", markup=False)
            ctx.exit(BAD_INPUT)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(lookahead)
app.add_typer(bench, name="bench")
app.add_typer(bita, name="bita")
app.add_typer(reader, name="reader")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        console.out.print(f"antiphon {version('antiphon')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and end.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    """Answers from your documents, drafted from their own passages: faster, and with exactly the same words."""


def _describe(folder: Path | None) -> None:
    if folder is not None:
        from antiphon.retrieval import read_store

        console.out.print("\n".join(read_store(folder).description.lines()), markup=False, soft_wrap=True)
        raise typer.Exit


@app.command()
def index(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders: txt, md, rst, html, pdf.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the index.")],
    embedder: Annotated[
        str, typer.Option(help="minilm, bge-m3, a folder or a hub name; auto: BGE-M3 on a GPU, MiniLM on a CPU.")
    ] = "auto",
    device: Device = None,
    setting: Annotated[
        str, typer.Option(help="How vectors are searched: auto, flat, compact, paper, or a FAISS factory string.")
    ] = "auto",
    describe: Annotated[
        Path | None,
        typer.Option(
            callback=_describe, is_eager=True, help="Say how this index searches, why, and how well; and end."
        ),
    ] = None,
) -> None:
    """Index documents, so that questions can be asked. What an earlier index embedded is not embedded again."""
    console.quiet_libraries()
    show_index(index_documents(paths, out, embedder=embedder, device=device, setting=setting))


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    index: Index,
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = DEFAULT_MODEL,
    k: Annotated[int, typer.Option("--k", "-k", help="How many passages the model reads.")] = 5,
    max_new_tokens: MaxNewTokens = 256,
    drafter: Annotated[str, typer.Option(help=DRAFTER_HELP)] = "blend",
    rows: Rows = None,
    plain: Annotated[bool, typer.Option("--plain", help="Decode plainly: the same as --drafter nothing.")] = False,
    temperature: Annotated[float, typer.Option(help="0 is greedy; above it the answer is sampled.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same sample.")] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End the answer before this text; may be repeated.", show_default="a blank line for smollm2"),
    ] = None,
    device: Device = None,
    sessions: Sessions = None,
    drafting: Annotated[
        bool, typer.Option("--drafting", help="Show the answer once more as it was decoded, step by step.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole answer as one JSON object.")] = False,
) -> None:
    """Ask a question: the answer streams, then its citations and one line of what it cost."""
    from antiphon.pipelines.drafters import drafter_named
    from antiphon.pipelines.rag import Rag
    from antiphon.retrieval import Retriever

    console.quiet_libraries()
    factory = drafter_named("nothing" if plain else drafter)
    retriever = Retriever.open(index, device=device)
    store = sessions_in(sessions, retriever)
    language_model = load_language_model(model, device=device, drafter=factory)
    if factory == "auto":
        console.show_choice(language_model)
    rag = Rag(retriever, language_model, k=k, sessions=store)
    stream = rag.stream(
        question,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        stop=stop or STOPS.get(model, ()),
        seed=seed,
        rows=rows,
    )
    if as_json:
        typer.echo(json.dumps(stream.to_end().answer.as_dict(), ensure_ascii=False))
        return
    answer = console.show_stream(stream)
    console.show_citations(answer)
    console.show_cost(answer)
    if drafting:
        console.out.print(answer.drafting)


@app.command()
def chat(
    index: Index,
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = DEFAULT_MODEL,
    k: Annotated[int, typer.Option("--k", "-k", help="How many passages the model reads in each turn.")] = 5,
    max_new_tokens: MaxNewTokens = 256,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Have the model rewrite follow-up questions for the search.")
    ] = False,
    device: Device = None,
    sessions: Sessions = None,
) -> None:
    """Ask one question after the other: answers stream, and what was said before is not read again."""
    from antiphon.pipelines.chat import Chat
    from antiphon.pipelines.rag import Rag
    from antiphon.pipelines.talk import talk
    from antiphon.retrieval import Retriever

    console.quiet_libraries()
    retriever = Retriever.open(index, device=device)
    store = sessions_in(sessions, retriever)
    rag = Rag(retriever, load_language_model(model, device=device), k=k, sessions=store)
    talk(Chat(rag, rewrite=rewrite), max_new_tokens=max_new_tokens, stop=STOPS.get(model, ()))


@app.command()
def certify(
    prompt: Annotated[str, typer.Argument(help="A question to the index; without one, a text to continue.")],
    index: Annotated[Path | None, typer.Option("--index", "-i", help="The folder that `antiphon index` made.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = DEFAULT_MODEL,
    k: Annotated[int, typer.Option("--k", "-k", help="How many passages the model reads.")] = 5,
    max_new_tokens: MaxNewTokens = 256,
    dtype: Precision = "auto",
    ulps: Annotated[
        float | None,
        typer.Option(help="The largest regret allowed.", show_default="2 in half precision, 64 in float32"),
    ] = None,
    drafter: Annotated[str, typer.Option(help=DRAFTER_HELP)] = "blend",
    rows: Rows = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Say the same whatever is drafted, in half precision too.")
    ] = False,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print text and certificate as one JSON object.")] = False,
) -> None:
    """Answer with drafts, then prove in one plain forward that every token is the model's own greedy choice.

    The exit code is 1 where the certificate does not hold.
    """
    from antiphon.pipelines.drafters import drafter_named
    from antiphon.pipelines.proof import proven
    from antiphon.retrieval import Retriever

    console.quiet_libraries()
    factory = drafter_named(drafter)
    retriever = None if index is None else Retriever.open(index, device=device)
    settings = {"dtype": dtype_named(dtype), "rows": rows, "drafter": factory, "deterministic": deterministic}
    language_model = load_language_model(model, device=device, **settings)
    if factory == "auto":
        console.show_choice(language_model)
    show = (lambda stream: None) if as_json else console.show_pieces
    options = {"max_new_tokens": max_new_tokens, "stop": STOPS.get(model, ())}
    proof = proven(prompt, language_model, retriever, k=k, ulps=ulps, show=show, **options)
    if as_json:
        typer.echo(json.dumps(proof.as_dict(), ensure_ascii=False))
    else:
        console.show_certificate(proof.certificate, proof.word)
    if not proof.certificate.holds:
        raise typer.Exit(1)


@app.command()
def demo(
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = DEFAULT_MODEL,
) -> None:
    """Index the documents that ship with antiphon, ask them questions, and compare with plain decoding."""
    from antiphon.pipelines.demo import run

    console.quiet_libraries()
    is_same = run(model)
    if model in EMBEDDED and not is_same:
        raise typer.Exit(1)


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = DEFAULT_MODEL,
    device: Device = None,
    families: Annotated[
        bool, typer.Option("--families", help="Try a tiny model of every known family instead (a minute).")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of families for the docs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a card.")] = False,
) -> None:
    """Say what a model can verify and why, what a forward of it costs, and what would help."""
    console.quiet_libraries()
    if families:
        _try_families(markdown=markdown, as_json=as_json)
        return
    if markdown:
        raise ValueError("--markdown is the table of families; give --families as well.")
    from antiphon.accel.testing.diagnosis import diagnose
    from antiphon.pipelines.doctor import show_diagnosis

    loaded = load_language_model(model, device=device).model
    with console.err.status("Examining"):
        diagnosis = diagnose(loaded)
    if as_json:
        typer.echo(json.dumps({"name": model} | diagnosis.as_dict()))
        return
    show_diagnosis(model, diagnosis)


def _try_families(*, markdown: bool, as_json: bool) -> None:
    """Print the table of families; it ends in failure where one of them is not exact."""
    from antiphon.pipelines.doctor import families_markdown, show_families, try_families

    trials = try_families()
    if as_json:
        typer.echo(json.dumps({"families": [trial.as_dict() for trial in trials]}))
    elif markdown:
        typer.echo(families_markdown(trials), nl=False)
    else:
        show_families(trials)
    if not all(trial.holds(mode) for trial in trials for mode in trial.trials):
        raise typer.Exit(1)
