"""Load a causal model and its tokenizer by name or folder; choose device and precision.

The files of a loaded model are recorded, so that its weights can be identified without reading them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from antiphon.accel.engines.torch.checkpoint import Checkpoint, CheckpointFile, weights_version
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.text_checkpoint import find_text_part
from antiphon.accel.files import safetensors_header
from antiphon.accel.processor import has_bfloat16_units
from antiphon.accel.quiet_loading import quiet_loading

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


LOCATION_OPTIONS = ("cache_dir", "code_revision", "gguf_file", "local_files_only", "revision", "subfolder", "token")
"""Options that locate a checkpoint; config and tokenizer need them too."""

RECORDED_OPTIONS = frozenset(LOCATION_OPTIONS) - {"gguf_file", "subfolder"} | {
    "attn_implementation",
    "trust_remote_code",
}
"""Options that leave the weights as in the files; adapters or quantisation would change them."""


OWN_CODE = (
    "The model {0!r} needs code of its own. It runs only if you allow it, in Python: "
    "LanguageModel.from_pretrained({0!r}, trust_remote_code=True). Otherwise choose another model, or serve this one "
    "with vLLM or llama.cpp and give its address (http://HOST:PORT/v1)."
)
"""The message for a checkpoint that brings code."""


def load_pretrained(
    name_or_path: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    device_map: Any = None,
    **model_kwargs: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer with transformers.

    Args:
        name_or_path: Name on the Hugging Face Hub, or folder of a checkpoint.
        device: Device of the model; None: a GPU if there is one, else the CPU.
        dtype: Precision; "auto": the checkpoint's own, but see `choose_dtype` for CPUs.
        device_map: Placement for transformers, instead of ``device``.
        model_kwargs: Passed to ``AutoModelForCausalLM.from_pretrained``.

    Raises:
        ValueError: The checkpoint is not a causal language model or lacks weights, or the device does not exist.
        OSError: There is no such checkpoint, or the hub cannot be reached.
    """
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM

    if device is not None and device_map is not None:
        raise ValueError(f"device is {device!r} and device_map {device_map!r}; give one of the two.")
    placement = device_map if device_map is not None else choose_device(device)
    name = str(name_or_path)
    model_kwargs = {"trust_remote_code": False} | model_kwargs  # without it, transformers asks at the terminal
    shared = {key: value for key, value in model_kwargs.items() if key in (*LOCATION_OPTIONS, "trust_remote_code")}
    try:
        config = AutoConfig.from_pretrained(name, **shared)
        part = find_text_part(config)
        check_causal(config if part is None else part.config, name)
        tokenizer = load_tokenizer(name, **shared)
        if dtype == "auto":
            dtype = choose_dtype(config.get_text_config(decoder=True).dtype or config.dtype, placement)
        files = _checkpoint_files(name, shared)
        options: dict[str, Any] = {"dtype": dtype, "device_map": placement, "output_loading_info": True} | model_kwargs
        load: Any = AutoModelForCausalLM.from_pretrained if part is None else part.load
        with quiet_loading():
            loaded = load(name, **options)
    except NotCausalError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        if "trust_remote_code" in str(error):
            raise ValueError(OWN_CODE.format(name)) from error
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(
            f"No language model could be loaded from {name!r} ({_first_sentence(error)}); give a folder with a "
            "transformers checkpoint, or a name on the Hugging Face Hub, which must be within reach or already cached."
        ) from error
    model, report = loaded
    _check_complete(name, report["missing_keys"])
    found = _checkpoint_files(name, shared)
    is_unchanged = files in ((), found)  # `files` is empty if the files have just been downloaded
    if found and is_unchanged and set(model_kwargs) <= RECORDED_OPTIONS:
        engine_of(model).checkpoint = Checkpoint(found, weights_version(model))
    return model, tokenizer


def load_tokenizer(name: str, **location: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint with transformers.

    Args:
        location: Options of ``from_pretrained`` that tell where the checkpoint is.
    """
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, **location)
    _set_processor_template(tokenizer, name, location)
    return tokenizer


def _set_processor_template(tokenizer: PreTrainedTokenizerBase, name: str, location: dict[str, Any]) -> None:
    """If a tokenizer has no chat template, use the template of the checkpoint's processor."""
    from transformers.utils.hub import cached_file

    if tokenizer.chat_template is not None:
        return
    options = {key: value for key, value in location.items() if key in ("cache_dir", "revision", "subfolder", "token")}
    missing = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    with suppress(OSError, ValueError, KeyError, TypeError):
        path = cached_file(name, "chat_template.json", **options, **missing)
        tokenizer.chat_template = json.loads(Path(str(path)).read_text(encoding="utf-8"))["chat_template"]


def _check_complete(name: str, missing: Collection[str]) -> None:
    """Raise an error if a checkpoint lacks weights, because transformers would initialize them at random.

    Raises:
        ValueError: Weights are missing.
    """
    if missing:
        first, *others = sorted(missing)
        more = f" and {len(others)} more" if others else ""
        raise ValueError(
            f"The checkpoint {name!r} has no weights named {first}{more}: it is incomplete, or in a format that this "
            "version of transformers does not read. Download it again, or use a checkpoint in another format."
        )


def checkpoint_of(model: PreTrainedModel) -> Checkpoint | None:
    """Return the files of a model's weights; None if unknown or if parameters have changed."""
    found = engine_of(model).checkpoint
    return found if found is not None and found.versions == weights_version(model) else None


def _checkpoint_files(name: str, location: dict[str, Any]) -> tuple[CheckpointFile, ...]:
    """Return the safetensors files of a local checkpoint; empty if it has other files or cannot be found."""
    from transformers.utils.hub import cached_file

    folder = Path(name)
    if not folder.is_dir():
        with suppress(OSError, ValueError):
            options = {key: value for key, value in location.items() if key in ("cache_dir", "revision")}
            folder = Path(str(cached_file(name, "config.json", **options, local_files_only=True))).parent
    is_adapter = (folder / "adapter_config.json").is_file()  # the base model lies elsewhere
    paths = [] if is_adapter else sorted(folder.glob("*.safetensors"))
    with suppress(OSError, ValueError):  # a file was removed meanwhile, or is damaged
        return tuple(_checkpoint_file(path.resolve(strict=True)) for path in paths)
    return ()


def _checkpoint_file(path: Path) -> CheckpointFile:
    facts = path.stat()
    digest = hashlib.sha256(safetensors_header(path)).hexdigest()
    return CheckpointFile(path, f"{path} {facts.st_size} {facts.st_mtime_ns} {facts.st_ino} {digest}")


CAUSAL = "ForCausalLM|LMHead|ForConditionalGeneration"
"""Parts of the class names of architectures that continue text."""


class NotCausalError(ValueError):
    """The model is not a causal language model."""


def check_causal(model: PreTrainedModel | PreTrainedConfig, name: str) -> None:
    """Raise an error for models that cannot continue text: encoders, encoder-decoders and classifiers.

    Args:
        model: A model, or its config before anything is loaded.
        name: Name or folder, for the error message.

    Raises:
        ValueError: The model, or the architecture that the config names, is not a causal language model.
    """
    config = getattr(model, "config", model)
    if config is model:
        architectures = list(getattr(config, "architectures", None) or [])
        is_custom = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
        is_causal = not architectures or is_custom or any(re.search(CAUSAL, each) for each in architectures)
    else:
        architectures = [type(model).__name__]
        is_causal = model.can_generate()
    if config.is_encoder_decoder or not is_causal:
        raise NotCausalError(
            f"{name!r} is a {next(iter(architectures), config.model_type)}, not a causal language model; give a model "
            "that continues text, such as an instruction-tuned LlamaForCausalLM."
        )


def choose_device(device: str | torch.device | None) -> torch.device:
    """Return the requested device; for None a GPU if there is one, else the CPU.

    Raises:
        ValueError: The device is unknown, or does not exist on this machine.
    """
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"There is no device {str(device)!r} here ({_first_sentence(error)}).") from error
    return torch.device(device)


def choose_dtype(stored: torch.dtype | None, placement: Any) -> str | torch.dtype:
    """Return the dtype argument for loading a checkpoint; "auto" keeps the checkpoint's own precision.

    On a CPU with bfloat16 units, a checkpoint in half precision is loaded in bfloat16. On other
    CPUs it is loaded in float32, which is exact, and faster there.

    Args:
        placement: Device, or a device map of transformers.
    """
    is_cpu = isinstance(placement, torch.device) and placement.type == "cpu"
    if not is_cpu or stored not in (torch.float16, torch.bfloat16):
        return "auto"
    return torch.bfloat16 if has_bfloat16_units() else torch.float32


def _first_sentence(error: BaseException) -> str:
    return re.split(r"(?<=[.!?])\s|\n", str(error).strip())[0].rstrip(".,") or type(error).__name__
