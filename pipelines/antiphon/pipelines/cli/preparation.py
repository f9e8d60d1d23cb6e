"""What commands need before they begin: an index, a language model, sessions; with progress on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.cli import console
from antiphon.pipelines.rendering.sanitize import sanitize_line

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel, TextModel
    from antiphon.pipelines.sessions import SessionStore
    from antiphon.retrieval import IndexReport, Retriever

STAGES = {"load": "Reading", "chunk": "Cutting into passages", "embed": "Embedding", "save": "Saving"}
DTYPES = ("auto", "float32", "bfloat16", "float16")
_SHOWN_SKIPPED = 20


def open_demo(*, device: str | None = None) -> Retriever:
    """The index of the demo's documents, made first where it is not there, with a bar for each stage."""
    from antiphon.pipelines.data.demo import demo_index
    from antiphon.retrieval import Retriever

    with console.progress_bars(STAGES) as report:
        folder = demo_index(report)
    return Retriever.open(folder, device=device)


def index_documents(
    paths: Sequence[Path],
    out: Path,
    *,
    embedder: str = "auto",
    device: str | None = None,
    setting: str = "auto",
    follow_links: bool = False,
) -> IndexReport:
    """Index files and folders into the folder ``out``, with one bar for each stage; see `build_index` for errors."""
    from antiphon.retrieval import build_index

    with console.progress_bars(STAGES) as report:
        options = {"setting": setting, "follow_links": follow_links}
        return build_index(paths, out, embedder=embedder, device=device, progress=report, **options)  # type: ignore[arg-type]


def show_index(report: IndexReport) -> None:
    """What was indexed, what was skipped and why, and which embedder was chosen."""
    reused = f" ({report.reused} of them embedded before)" if report.reused else ""
    console.err.print(
        f"{report.files} files, {report.passages} passages{reused}, embedder {report.embedder}, "
        f"{report.seconds:.1f} s: {sanitize_line(str(report.folder))}",
        markup=False,
    )
    if report.skipped:
        console.err.print(f"{len(report.skipped)} skipped:", style="yellow")
    for skipped in report.skipped[:_SHOWN_SKIPPED]:
        console.err.print(sanitize_line(f"  {skipped.path}: {skipped.reason}"), style="yellow", markup=False)
    if len(report.skipped) > _SHOWN_SKIPPED:
        console.err.print(f"  and {len(report.skipped) - _SHOWN_SKIPPED} more", style="yellow")


def load_language_model(
    name: str, *, device: str | None = None, dtype: Any = "auto", engine: Any = "torch", **settings: Any
) -> LanguageModel:
    """The language model that a user called ``name``, converted first where it is embedded or its engine wants it.

    ``settings`` go to `LanguageModel.from_pretrained`.

    Raises:
        ValueError: it is the address of a server: a model there cannot be looked into; or the engine cannot run it.
    """
    if is_address(name):
        raise ValueError(
            f"{name} is the address of a server; this needs a model that runs here, by its folder or name."
        )
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.models.bundled import resolve_model

    # The GGUF reader of transformers draws a bar of its own, which nothing switches off.
    with console.progress_bars() as report, redirect_stderr(StringIO()):
        place = resolve_model(name, progress=report)
    if engine == "torch":
        with console.err.status(f"Loading {name}"):
            return LanguageModel.from_pretrained(place, device=device, dtype=dtype, engine=engine, **settings)
    with console.progress_bars() as report:
        return LanguageModel.from_pretrained(
            place, device=device, dtype=dtype, engine=engine, report=report, **settings
        )


def is_address(name: str) -> bool:
    """Whether a model is named by its server's address."""
    return name.startswith(("http://", "https://"))


def open_language_model(
    name: str, *, device: str | None = None, drafter: Any = "blend", engine: str = "auto", weights: str | None = None
) -> TextModel:
    """The language model to ask: one that runs here, or by an address ("http://host:8000/v1") one on a server.

    Behind "#" stands the model's name there; without one it is the server's first.

    Raises:
        ValueError: nothing is called that, or a server was told how to draft or by which engine.
        RemoteError: the server cannot be asked, or has no such model.
    """
    if not is_address(name):
        return load_language_model(name, device=device, drafter=drafter, engine=engine, weights=weights)
    from antiphon.accel import RemoteLanguageModel
    from antiphon.pipelines.models.drafters import resolve_drafter

    if drafter not in ("blend", resolve_drafter("blend")):
        raise ValueError("--drafter and --plain are for models that run here; how a server drafts it says itself.")
    if engine != "auto" or weights is not None:
        raise ValueError("--engine and --weights are for models that run here; a server has its own.")
    address, _, model = name.partition("#")
    remote = RemoteLanguageModel(address, model or None)
    with console.err.status(f"Asking {address}"):
        remote.server  # noqa: B018  # now, not after the search
    return remote


def sessions_in(file: Path | None, retriever: Retriever) -> SessionStore | None:
    """The earlier answers of a file, found by the embedder of the index; none where no file was named."""
    if file is None:
        return None
    if not file.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(file.parent)!r} for {file.name!r}; make it, or give another.")
    from antiphon.pipelines.sessions import SessionStore

    return SessionStore(file, embedder=retriever.embedder)


def dtype_named(name: str) -> Any:
    """The precision that a user called ``name``: "auto", or one of torch's.

    Raises:
        ValueError: there is none of that name; the message names those that there are.
    """
    if name not in DTYPES:
        raise ValueError(f"There is no precision {name!r}; choose one of {', '.join(DTYPES)}.")
    if name == "auto":
        return name
    import torch

    return getattr(torch, name)
