"""Open models from the user's cache without torch and transformers, if everything needed is there.

After a model was loaded and OpenVINO was selected, a record is written. It contains facts about
model, tokenizer and graph, and the names, sizes and times of the checkpoint's files. A later
process with the same files, libraries and settings opens the stored graph with the weights in the
checkpoint. Transformers' model is loaded only when it is needed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import psutil

from antiphon.accel.cache_folder import cache_folder
from antiphon.accel.engines.openvino import store
from antiphon.accel.engines.openvino.opening import GraphFacts, open_engine
from antiphon.accel.engines.selection import MIN_PARAMETERS, SelectedEngine, adopt_engine
from antiphon.accel.engines.torch.bigrams import BigramFacts
from antiphon.accel.files import write_cache_file
from antiphon.accel.memory_estimate import imported_torch, is_on_cpu
from antiphon.accel.processor import has_bfloat16_units, processor_name
from antiphon.accel.text.file_tokenizer import FileTokenizer, tokenizer_facts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antiphon.accel.decoding.options import DecodingOptions

FORMAT = 1
"""Version of the records. Increase it when their contents change: older records are ignored."""

PACKAGES = ("antiphon", "torch", "transformers", "tokenizers", "jinja2", "openvino", "nncf")
"""Packages whose versions a record depends on."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT")
"""Environment variables from which torch takes its number of threads."""


class NotCachedError(LookupError):
    """A model cannot be opened from the cache."""


class StoredModel:
    """A placeholder for transformers' model, which is loaded when it is first needed.

    Attributes:
        selected: The opened engine, and why it is used.
        num_parameters: Number of the model's weights as they are stored.
    """

    def __init__(
        self,
        record: dict[str, Any],
        selected: SelectedEngine,
        options: DecodingOptions,
        memory: int | None,
        load: Callable[[], PreTrainedModel],
    ) -> None:
        self.selected = selected
        self.num_parameters: int = record["num_parameters"]
        self._config = config = SimpleNamespace(**record["config"])
        config.get_text_config = lambda decoder=False: config
        self._generation = SimpleNamespace(**record["generation"])
        self._key: str = record["graph"]["facts"]["key"]
        self._options, self._memory, self._load = options, memory, load
        self._model: PreTrainedModel | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether transformers' model has been loaded."""
        return self._model is not None

    @property
    def config(self) -> Any:
        """The model's configuration, or the recorded part of it."""
        return self._config if self._model is None else self._model.config

    @property
    def generation_config(self) -> Any:
        """The model's generation settings, or the recorded part of them."""
        return self._generation if self._model is None else self._model.generation_config

    @property
    def loaded(self) -> PreTrainedModel:
        """Transformers' model, loaded at the first access; it uses the opened engine.

        Raises:
            ValueError: The model's files have changed since the engine was opened.
        """
        if self._model is None:
            # The engine's lock comes first, because a request holds it when it asks for the model.
            self.selected.engine.lock.run(self._load_once)
        return cast("PreTrainedModel", self._model)

    def _load_once(self) -> None:
        if self._model is not None:
            return
        model = self._load()
        if store.fingerprint(model, self._options.weights or "") != self._key:
            raise ValueError(
                f"The files of {model.config.name_or_path!r} have changed since the model was opened; open it again."
            )
        adopt_engine(model, self._options.engine_choice, self.selected, self._memory)
        self._model = model

    def decodes_greedily(self) -> bool:
        """Return whether greedy requests run without transformers.

        They do if transformers' model is not loaded and autocast is off.
        """
        torch = imported_torch()
        return self._model is None and not (torch is not None and torch.is_autocast_enabled("cpu"))


class ModelStore:
    """The record of one model in the user's cache.

    Args:
        place: Folder of the checkpoint, or name on the hub.
    """

    def __init__(self, place: str | Path, dtype: Any, options: DecodingOptions) -> None:
        self.options = options
        self._folder = _checkpoint_folder(str(place))
        self._dtype = str(dtype)
        name = hashlib.sha256(f"{self._folder}\0{dtype}\0{options.weights}".encode()).hexdigest()
        self._path = cache_folder() / "opened" / f"{name[:32]}.json"

    def open(
        self,
        memory: int | None,
        load: Callable[[], PreTrainedModel],
        load_tokenizer: Callable[[], PreTrainedTokenizerBase],
    ) -> tuple[StoredModel, FileTokenizer] | None:
        """Return the model and its tokenizer; None if anything is missing or has changed, or if torch is faster.

        Args:
            memory: Size of the KV cache in bytes; None for the default.
            load: Loads transformers' model; called when the model is first needed.
            load_tokenizer: Loads transformers' tokenizer; called if `FileTokenizer` is not enough.
        """
        is_auto = self.options.engine_choice == "auto"
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged record
            record = json.loads(self._path.read_text(encoding="utf-8"))
            graph, torch = record["graph"], imported_torch()
            facts = GraphFacts(**graph["facts"])
            if record["identity"] != self._identity() or (torch and torch.get_num_threads() != facts.threads):
                return None
            if is_auto and record["num_parameters"] < MIN_PARAMETERS:
                return None
            tokenizer = FileTokenizer(record["tokenizer"]["backend"], record["tokenizer"]["facts"], load_tokenizer)
            opened = open_engine(
                facts, graph["places"], BigramFacts(**graph["bigrams"]), memory=memory, if_faster=is_auto
            )
            if opened is not None:
                return StoredModel(record, SelectedEngine(*opened), self.options, memory, load), tokenizer
        return None

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write the record of a model that runs on OpenVINO, if other processes can open it from the record."""
        from antiphon.accel.engines.openvino.loader import recorded_facts

        known, graph = tokenizer_facts(tokenizer), recorded_facts(model, self.options.weights or "")
        if self._folder is None or known is None or graph is None or not _is_default(graph["facts"]["threads"]):
            return
        config, generation = model.config, model.generation_config
        text = config.get_text_config(decoder=True)
        record = {
            "identity": self._identity(),
            "graph": graph,
            "tokenizer": {"backend": known[0], "facts": known[1]},
            "num_parameters": model.num_parameters(),
            "config": {
                "model_type": config.model_type,
                "name_or_path": config.name_or_path,
                "prompt_format": getattr(config, "prompt_format", None),
                "vocab_size": text.vocab_size,
                "max_position_embeddings": getattr(config.get_text_config(), "max_position_embeddings", None),
            },
            "generation": {
                "eos_token_id": generation.eos_token_id if generation else None,
                "pad_token_id": generation.pad_token_id if generation else None,
            },
        }
        with suppress(TypeError, ValueError):  # a setting cannot be written as JSON
            write_cache_file(self._path, json.dumps(record).encode())

    def _identity(self) -> dict[str, Any]:
        """Return everything that the record depends on: files, libraries, processor, threads and precision."""
        found = [] if self._folder is None else sorted(self._folder.iterdir())
        facts = {each.name: each.stat() for each in found if each.is_file()}
        return {
            "format": [FORMAT, store.FORMAT],
            "folder": str(self._folder),
            "files": {name: [each.st_size, each.st_mtime_ns, each.st_ino] for name, each in facts.items()},
            "packages": {name: _version(name) for name in PACKAGES},
            "processor": [processor_name(), has_bfloat16_units(), _cores(), *map(os.environ.get, THREADS)],
            "dtype": self._dtype,
        }


def refuse_conversion(stage: str, done: int, total: int) -> None:
    """Stop a conversion at its first report of progress.

    Raises:
        NotCachedError: Always.
    """
    raise NotCachedError(f"{stage}: not done yet.")


def store_of(
    place: str | Path, device: Any, dtype: Any, device_map: Any, options: DecodingOptions, arguments: dict[str, Any]
) -> ModelStore | None:
    """Return the store of a model; None if the model is not on the CPU, or an option cannot be recorded.

    Args:
        arguments: Further arguments for transformers. Records do not contain these arguments, so
            the result is None if any are given.
    """
    is_plain = not arguments and device_map is None and options.engine_name != "torch" and is_on_cpu(device)
    return ModelStore(place, dtype, options) if is_plain else None


def _checkpoint_folder(place: str) -> Path | None:
    """Return a checkpoint's folder; for a name on the hub, its newest version's cache folder."""
    if Path(place).is_dir():
        return Path(place).resolve()
    with suppress(Exception):  # whatever is wrong, the loader's message is better
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(place, "config.json")).parent
    return None


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _is_default(threads: int) -> bool:
    """Return whether this is torch's default number of threads, so that other processes have it, too."""
    configured = [os.environ[name] for name in THREADS if name in os.environ]
    return str(threads) in configured if configured else threads in (_cores(), psutil.cpu_count(logical=False))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
