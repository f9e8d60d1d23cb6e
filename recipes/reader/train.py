"""Training: a LoRA adapter that makes a language model answer by quoting. Knows nothing of where examples come from.

LoRA (Hu et al. 2021) on every linear layer of the blocks; the loss is on answers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from antiphon.accel.files import write_file
from antiphon.pipelines.models.adapter import further, quiet_peft
from antiphon.pipelines.models.bundled import resolve_model
from antiphon.pipelines.training.loop import StepReport, train_weights
from recipes.reader.encoding import PackedExample, encode_example
from recipes.reader.example import TrainingExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_WRITTEN = 4  # of so many examples all but one are about passages that people asked about


@dataclass(frozen=True, slots=True)
class LoraPlan:
    """How to train: ``steps`` updates of ``examples`` examples each; ``rank`` and ``alpha`` of LoRA.

    The rate rises over ``warm_up`` steps to ``learning_rate`` and falls to zero over the last ``decay`` of the steps.
    The adapter is saved every ``save_every`` steps.
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
        """The learning rate of update ``step``, from 0, as a share of the highest."""
        rising = (step + 1) / max(1, self.warm_up)
        falling = (self.steps - step) / max(1.0, self.decay * self.steps)
        return min(1.0, rising, falling)


ExampleSource = Callable[[int], TrainingExample]
"""Gives the example of a number, always the same."""


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
    """Train an adapter for ``model`` and save it in ``out``, in peft's format and bfloat16.

    ``base`` is the model's name, which the adapter keeps, so that it is put on no other. A run that was cut off goes
    on from its last checkpoint, which lies in ``out`` until the end; with the same plan it ends with the same weights
    as one that was not. ``start`` is an adapter to begin with instead of a fresh one; its rank and alpha count.
    ``report`` is told the loss per answer token.

    Raises:
        ValueError: ``out`` holds a checkpoint of another plan, the model has no layers of the wanted names, or
            ``start`` is no adapter for this model.
    """
    from accelerate.utils import set_seed  # type: ignore[import-untyped]

    set_seed(plan.seed)
    adapted = _fresh(model, plan, base) if start is None else further(model, start)

    def parts(adapted: Any, step: int, process: int, processes: int) -> Iterator[torch.Tensor]:
        for number in example_numbers(step, plan, process, processes):
            loss = answer_loss(adapted, encode_example(example(number), tokenizer), model.device)
            yield loss / (plan.batch_size * processes)

    return train_weights(adapted, plan, parts, out, save=save_adapter, report=report)


def load_base(
    name: str, device: str | None = None, *, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model that is taught, in ``dtype``, and its tokenizer.

    An adapter beside a bfloat16 model is kept in float32, since in bfloat16 it learns nothing from small steps.

    Raises:
        ValueError, ImportError: there is no such model; see `resolve_model`.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = resolve_model(name)
    model: Any = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, attn_implementation="sdpa")
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return model, AutoTokenizer.from_pretrained(place)


def is_written(number: int) -> bool:
    """Whether example ``number`` is about a passage that people asked about, where there are any."""
    return number % _WRITTEN != 0


def answer_loss(model: torch.nn.Module, encoded: PackedExample, device: torch.device) -> torch.Tensor:
    """The mean cross-entropy of a example's answer tokens, in nats; the head is computed on their rows alone."""
    logits = answer_logits(model, encoded, device)
    return torch.nn.functional.cross_entropy(logits[0].float(), encoded.targets.to(device))


def answer_logits(model: torch.nn.Module, encoded: PackedExample, device: torch.device) -> torch.Tensor:
    """The logits (1, targets, vocabulary) behind a example's answer tokens, computed as the model's weights are kept."""
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
    """The adapter in bfloat16, in peft's format."""
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
    """The examples of one update for one of several processes."""
    first = step * plan.batch_size * processes + rank
    yield from range(first, first + plan.batch_size * processes, processes)
