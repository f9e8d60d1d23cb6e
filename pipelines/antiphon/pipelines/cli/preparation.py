"""Loads what commands need (index, language model, session store), with progress on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from threading import Thread
from typing import TYPE_CHECKING, Any

from antiphon.accel.models.bundled import BUNDLED, check_name, is_gguf, resolve_model
from antiphon.accel.remote.server import is_address
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import DEFAULT_MODEL, EXTRACTIVE

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel, RemoteLanguageModel, TextModel
    from antiphon.pipelines.sessions import SessionStore
    from antiphon.retrieval import Retriever

DTYPES = ("auto", "float32", "bfloat16", "float16")


def load_language_model(name: str, *, engine: Any = "torch", **settings: Any) -> LanguageModel:
    """Load a local language model by name, and convert it first if needed, for example from a GGUF file.

    Args:
        name: Bundled model, folder, GGUF file or hub name.
        **settings: Further arguments of `LanguageModel.from_pretrained`.

    Raises:
        ValueError: the name is a server's address, or the engine cannot run the model.
    """
    if name == EXTRACTIVE:
        raise ValueError(
            "The model 'extractive' quotes documents, and this command needs a language model: "
            "reader, smollm2, a folder, or a name of the hub."
        )
    if is_address(name):
        raise ValueError(
            f"{name} is the address of a server; this needs a model that runs here, by its folder or name."
        )
    from antiphon.accel import LanguageModel

    with console.progress_bars(waiting=f"Loading {name}") as report:
        resolve_model(name, progress=report)
        return LanguageModel.from_pretrained(name, engine=engine, report=report, **settings)


def prepare_model(
    name: str, *, device: str | None = None, dtype: str = "auto", engine: str = "auto", weights: str | None = None
) -> Callable[..., TextModel]:
    """Check a model's name and memory before anything is loaded, and return the function that loads the model.

    Args:
        name: ``extractive``, a bundled model, folder, GGUF file, hub name or address ("ollama/qwen3",
            "http://host:8000/v1#model"). The server at an address is contacted at once.
        weights: Quantization for OpenVINO: "int8", "int4", or None.

    Returns:
        A function that loads the model; its argument ``drafter`` is a drafter's factory, "blend" or "auto".

    Raises:
        ValueError: there is no such model, or ``engine`` or ``weights`` was given for a server.
        RemoteError: the server cannot be reached, or has no such model.
        NotEnoughMemoryError: the model does not fit.
    """
    if is_address(name):
        if engine != "auto" or weights is not None:
            raise ValueError("--engine and --weights are for models that run here; a server has its own.")
        return partial(_checked_server, connect(name))
    if name == EXTRACTIVE:
        return _extractive_model
    check_model(name, device=device, dtype=dtype, engine=engine, weights=weights)
    own: dict[str, Any] = {"device": device, "engine": engine, "weights": weights, "dtype": dtype_named(dtype)}
    opened: Future[LanguageModel | None] = Future()
    Thread(target=_open_cached, args=(opened, name, own), daemon=True).start()

    def load(drafter: Any = "blend") -> TextModel:
        with console.status(f"Loading {name}"):
            language_model = opened.result()
        if language_model is None:
            return load_language_model(name, drafter=drafter, **own)
        language_model.options = replace(language_model.options, drafter=drafter)
        return language_model

    return load


def check_model(name: str, *, engine: Any, weights: Any, **options: Any) -> None:
    """Check a local model's name and memory, the engine and the weights, without loading anything.

    Args:
        options: Arguments of `check_memory`.

    Raises:
        ValueError: there is no such model, engine or weights.
        ImportError: ``weights`` needs a package that is not installed.
        NotEnoughMemoryError: the model does not fit.
    """
    from antiphon.accel.decoding.options import DecodingOptions
    from antiphon.accel.memory_estimate import check_memory

    check_name(name)
    DecodingOptions(engine=engine, weights=weights)
    if name not in BUNDLED and not is_gguf(name):
        check_memory(name, engine=engine, weights=weights, **options)


def _open_cached(opened: Future[LanguageModel | None], name: str, options: dict[str, Any]) -> None:
    """Open a model from the cache while an index is read.

    The result is None if the model must be loaded or converted.
    """
    try:
        from antiphon.accel.language_model import LanguageModel
        from antiphon.accel.stored_model import refuse_conversion

        opened.set_result(LanguageModel.from_pretrained(name, report=refuse_conversion, only_cached=True, **options))
    except Exception:  # noqa: BLE001 - it is loaded next, which reports what is wrong
        opened.set_result(None)


def preload_encoders() -> None:
    """Start loading the sentence encoders that select quotes, in a thread."""
    from antiphon.pipelines.relevance import bundled_encoders

    gettempdir()  # torch needs one; without one the error is raised here, not in the thread

    def load() -> None:
        with suppress(Exception):  # loaded again by the thread that needs them, which reports what is wrong
            bundled_encoders()

    Thread(target=load, daemon=True).start()


def connect(address: str) -> RemoteLanguageModel:
    """Return the model at an address, after its server has answered.

    Raises:
        ValueError: the address is not valid.
        RemoteError: the server cannot be reached, or has no such model.
    """
    from antiphon.accel.remote_language_model import RemoteLanguageModel

    remote = RemoteLanguageModel(address)
    remote.server  # noqa: B018  # asked now, before an index is opened
    return remote


def _extractive_model(drafter: Any = None) -> TextModel:
    from antiphon.pipelines.extractive_model import ExtractiveModel

    return ExtractiveModel()


def _checked_server(remote: RemoteLanguageModel, drafter: Any = "blend") -> TextModel:
    from antiphon.pipelines.models.drafters import resolve_drafter

    if drafter not in ("blend", resolve_drafter("blend")):
        raise ValueError("--drafter and --plain are for models that run here; a server decides itself how it drafts.")
    return remote


def note_missing_switch(language_model: TextModel, thinking: bool | None) -> None:
    """Print a note if the user turned thinking on or off and the model's chat template cannot switch it.

    Args:
        thinking: True: turned on; False: turned off; None: the user set neither, so there is no note.
    """
    from antiphon.accel.text.thinking_switch import thinking_traits

    if thinking is None or language_model.tokenizer is None:
        return
    traits = thinking_traits(language_model.tokenizer)
    if not traits.switch:
        option = "--thinking" if thinking else "--no-thinking"
        limit = "; --max-thinking-tokens limits it" if traits.format else ""
        console.err.print(
            f"{option} has no effect: the chat template of {language_model.name} has no switch for thinking{limit}.",
            style="dim",
            markup=False,
        )


def read_template(file: Path | None, model: str) -> str | None:
    """Read a prompt template for `template_prompt`; None without a file.

    Raises:
        ValueError: the file is not UTF-8, a placeholder is missing, or the model does not accept a template.
    """
    from antiphon.pipelines.prompt import TAKES_NO_PROMPT, check_template

    if file is None:
        return None
    if model in (EXTRACTIVE, DEFAULT_MODEL):
        raise ValueError(TAKES_NO_PROMPT.format(model))
    try:
        return check_template(file.read_text("utf-8"))
    except ValueError as error:  # of which UnicodeDecodeError is one
        raise ValueError(f"{file} cannot be used as --prompt: {error}") from error


def sessions_in(file: Path | None, retriever: Retriever) -> SessionStore | None:
    """Open the session store in a file, with the embedder of the index; return None without a file.

    Raises:
        FileNotFoundError: the file's folder does not exist.
    """
    if file is None:
        return None
    if not file.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(file.parent)!r} for {file.name!r}; make it, or give another.")
    from antiphon.pipelines.sessions import SessionStore

    return SessionStore(file, embedder=retriever.embedder)


def dtype_named(name: str) -> Any:
    """Return the torch dtype of this name, or "auto".

    Raises:
        ValueError: there is no such dtype.
    """
    if name not in DTYPES:
        raise ValueError(f"There is no precision {name!r}; choose one of {', '.join(DTYPES)}.")
    if name == "auto":
        return name
    import torch

    return getattr(torch, name)
