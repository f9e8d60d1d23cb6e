"""Trains a LoRA adapter that makes a language model answer by quoting.

LoRA (Hu et al. 2021) on every linear layer of the blocks; the loss is on answer tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from antiphon.accel.files import write_file
from antiphon.accel.models.bundled import check_adapter, errors_as_value_error, quiet_peft, resolve_model
from recipes.reader.encoding import PackedExample, encode_example
from recipes.reader.example import TrainingExample
from recipes.training_loop import StepReport, train_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_WRITTEN = 4  # every n-th example is about a passage without written questions


@dataclass(frozen=True, slots=True)
class LoraPlan:
    """Plan of a training run.

    Attributes:
        steps: Number of updates.
        batch_size: Examples per update.
        learning_rate: Peak learning rate.
        warm_up: Updates of linear warm-up.
        decay: Share of the updates, at the end, over which the rate falls to zero.
        rank: Rank of LoRA.
        alpha: Alpha of LoRA.
        seed: Random seed.
        save_every: Updates between checkpoints.
    """

    steps: int = 110
    batch_size: int = 3
    learning_rate: float = 5e-4
    warm_up: int = 10
    decay: float = 0.4
    rank: int = 16
    alpha: int = 32
    seed: int = 1
    save_every: int = 5

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "rank", "alpha", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")

    def rate(self, step: int) -> float:
        """Return the learning rate of update ``step`` (from 0) relative to the peak."""
        rising = (step + 1) / max(1, self.warm_up)
        falling = (self.steps - step) / max(1.0, self.decay * self.steps)
        return min(1.0, rising, falling)


ExampleSource = Callable[[int], TrainingExample]
"""Returns the training example with a given number; equal numbers give equal examples."""


def train_reader(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    example: ExampleSource,
    out: Path,
    plan: LoraPlan,
    *,
    base: str,
    start: Path | None = None,
    report: StepReport = lambda step, loss: None,
) -> Path:
    """Train an adapter and save it in peft's format and bfloat16.

    An interrupted run resumes from its last checkpoint in ``out`` and, with the same plan, ends with the same weights
    as an uninterrupted one.

    Args:
        model: The base model.
        tokenizer: Its tokenizer.
        example: Returns the training example with a given number.
        out: Folder of the adapter.
        plan: Training plan.
        base: Name of the base model, stored in the adapter so that it is not applied to another one.
        start: Adapter to start from; its rank and alpha are used. Default a new one.
        report: Called with step and loss per answer token.

    Raises:
        ValueError: ``out`` holds a checkpoint of another plan, the model lacks the expected layers, or ``start`` does
            not fit the model.
    """
    from accelerate.utils import set_seed  # type: ignore[import-untyped]

    set_seed(plan.seed)
    adapted = _fresh(model, plan, base) if start is None else trainable_adapter(model, start)

    def parts(adapted: Any, step: int, process: int, processes: int) -> Iterator[torch.Tensor]:
        for number in example_numbers(step, plan, process, processes):
            loss = answer_loss(adapted, encode_example(example(number), tokenizer), model.device)
            yield loss / (plan.batch_size * processes)

    return train_weights(adapted, plan, parts, out, save=save_adapter, report=report)


def load_base(
    name: str, device: str | None = None, *, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the base model and its tokenizer.

    The adapter of a bfloat16 model is kept in float32, because small updates would be lost in bfloat16.

    Args:
        name: Name or folder of the model.
        device: Device name; default a GPU if there is one.
        dtype: Dtype of the model.

    Raises:
        ValueError, ImportError: there is no such model; see `resolve_model`.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = resolve_model(name)
    model: Any = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, attn_implementation="sdpa")
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return model, AutoTokenizer.from_pretrained(place)


def is_written(number: int) -> bool:
    """Return whether example ``number`` is about a passage with written questions, if there are any."""
    return number % _WRITTEN != 0


def answer_loss(model: torch.nn.Module, encoded: PackedExample, device: torch.device) -> torch.Tensor:
    """Return the mean cross-entropy of the answer tokens in nats; the LM head runs on their rows only.

    Args:
        model: The model.
        encoded: A packed example.
        device: The model's device.
    """
    logits = answer_logits(model, encoded, device)
    return torch.nn.functional.cross_entropy(logits[0].float(), encoded.targets.to(device))


def answer_logits(model: torch.nn.Module, encoded: PackedExample, device: torch.device) -> torch.Tensor:
    """Return the logits of the answer tokens, of shape (1, targets, vocabulary), in the model's dtype.

    Args:
        model: The model.
        encoded: A packed example.
        device: The model's device.
    """
    is_half = next(iter(model.parameters())).dtype is torch.bfloat16
    with torch.autocast(device.type, torch.bfloat16, enabled=is_half):
        logits: torch.Tensor = model(
            input_ids=encoded.tokens.to(device),
            position_ids=encoded.positions.to(device),
            attention_mask=encoded.mask.to(device),
            use_cache=False,
            logits_to_keep=encoded.sources.to(device),
        ).logits
    return logits


def save_adapter(adapted: Any, out: Path) -> None:
    """Save the adapter in peft's format and bfloat16.

    Args:
        adapted: The model with the adapter.
        out: Folder to write to.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save

    state = {
        name: weight.detach().cpu().to(torch.bfloat16).contiguous()
        for name, weight in get_peft_model_state_dict(adapted, save_embedding_layers=False).items()
    }
    written = save(state, metadata={"format": "pt"})
    write_file(out / "adapter_model.safetensors", written, mode=None)
    adapted.peft_config["default"].save_pretrained(out)


def _fresh(model: PreTrainedModel, plan: LoraPlan, base: str) -> Any:
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(
        r=plan.rank, lora_alpha=plan.alpha, target_modules=list(LAYERS), task_type=TaskType.CAUSAL_LM, bias="none"
    )
    with quiet_peft():
        adapted = get_peft_model(model, config)
    adapted.peft_config["default"].base_model_name_or_path = base
    return adapted


def example_numbers(step: int, plan: LoraPlan, rank: int, processes: int) -> Iterator[int]:
    """Yield the example numbers of one update for one of several processes.

    Args:
        step: Number of the update, from 0.
        plan: Training plan.
        rank: Number of the process.
        processes: Number of processes.
    """
    first = step * plan.batch_size * processes + rank
    yield from range(first, first + plan.batch_size * processes, processes)


def trainable_adapter(model: Any, adapter: Path) -> Any:
    """Return the base model with the adapter in a folder applied and trainable.

    Raises:
        ValueError: the adapter is incomplete, damaged, or made for another model.
    """
    from peft import PeftModel

    check_adapter(adapter)
    with errors_as_value_error(adapter):
        return PeftModel.from_pretrained(model, adapter, is_trainable=True)
