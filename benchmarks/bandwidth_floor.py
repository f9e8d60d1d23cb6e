"""Bandwidth floor: time of a decoding step against the time to read weights and KV cache once at the copy rate.

python -m benchmarks.bandwidth_floor --model llama-3.1-8b
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from antiphon.accel.drafting.draft import Accepted, Draft, Logits, Tokens, chain
from antiphon.pipelines.benchmark.facts import machine_caption, run_facts
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.bench import AsJsonToo
from antiphon.pipelines.cli.options import Device, Precision
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.program import program
from benchmarks.random_weights import ModelOrArchitecture, TokenizerName, load_model_or_random
from benchmarks.teacher_forcing import TeacherForcing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
REPEATS = 7
WARM_UP = 2
"""Unmeasured warm-up steps for each number of rows, which compile kernels."""

COPIED = {"cpu": 2**28, "cuda": 2**31}
"""Bytes copied to measure the copy rate: far more than the device's caches hold."""

FLOOR = {"rows": "rows", "ms": "ms", "ratio": "plain steps", "of_floor": "floors"}


@dataclass(frozen=True, slots=True)
class BandwidthFloor:
    """Measurements of one model on one device.

    Attributes:
        weights: Bytes of weights that a step reads.
        cache: Bytes of the KV cache after ``context`` tokens.
        rate: Copy rate in bytes per second, reads and writes.
        context: Tokens before the measured steps.
        steps: Seconds of a step by its number of rows.
    """

    weights: int
    cache: int
    rate: float
    context: int
    steps: Mapping[int, float]

    @property
    def seconds(self) -> float:
        """Time to read weights and cache once at the copy rate; a lower bound of every step that reads all of them."""
        return (self.weights + self.cache) / self.rate

    def as_dict(self) -> dict[str, Any]:
        """Return all figures; ``ratio`` divides a step's time by that of a one-row step, ``of_floor`` by the floor."""
        return {
            "weights_bytes": self.weights,
            "cache_bytes": self.cache,
            "copy_gb_per_s": round(self.rate / 1e9, 2),
            "floor_ms": round(1000 * self.seconds, 3),
            "context": self.context,
            "rows": list(self.steps),
            "ms": [round(1000 * seconds, 3) for seconds in self.steps.values()],
            "ratio": [round(seconds / self.steps[1], 3) for seconds in self.steps.values()],
            "of_floor": [round(seconds / self.seconds, 3) for seconds in self.steps.values()],
        }


def measure_floor(
    model: PreTrainedModel, *, rows: Sequence[int] = ROWS, context: int = 1024, copied: int | None = None
) -> BandwidthFloor:
    """Measure a model's steps and its device's copy rate.

    Args:
        model: Model to measure.
        rows: Numbers of rows per step.
        context: Tokens before the measured steps.
        copied: Bytes to copy; default by device (`COPIED`).

    Raises:
        ValueError: ``rows`` or ``context`` is not positive, or the model has too few positions.
    """
    steps = step_seconds(model, rows, context)
    rate = copy_rate(model.device, copied or COPIED.get(model.device.type, COPIED["cpu"]))
    return BandwidthFloor(read_bytes(model), round(cache_bytes(model) * context), rate, context, steps)


def step_seconds(model: PreTrainedModel, rows: Sequence[int], context: int) -> dict[int, float]:
    """Return the median seconds of decoding steps by their number of verified rows (root and draft).

    The steps are those of `stream`, which compiles them on GPUs. Teacher forcing makes every step
    emit one token. Steps of the different numbers of rows alternate.

    Args:
        model: Model to measure.
        rows: Numbers of rows per step.
        context: Tokens before the measured steps.

    Raises:
        ValueError: ``rows`` or ``context`` is not positive, or the model has too few positions.
    """
    from antiphon.accel.engines.torch.engine import traits_of
    from antiphon.accel.generate import stream

    for name, value in {"rows": min(rows, default=0), "context": context}.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; at least 1 is needed to measure a step.")
    counts = sorted({1, *rows})
    length = 1 + (WARM_UP + REPEATS) * len(counts)
    traits = traits_of(model)
    if traits.max_positions is not None and context + length + counts[-1] > traits.max_positions:
        needed = context + length + counts[-1]
        raise ValueError(
            f"Steps after {context} tokens need {needed} positions, and the model has {traits.max_positions}."
        )
    emitted, drafted = _two_ordinary_tokens(model)
    with TeacherForcing(model, end=emitted, longest=length) as forcing:
        forcing.follow(context, [emitted] * length)
        ids = torch.full((1, context), emitted, device=model.device)
        options: dict[str, Any] = {"max_new_tokens": length + counts[-1], "do_sample": False, "num_beams": 1}
        options |= {"attention_mask": torch.ones_like(ids), "num_draft_tokens": counts[-1] - 1}
        drafter = _ChainDrafter([count - 1 for count in counts], drafted)
        steps = list(islice(stream(model, ids, drafter=lambda: drafter, **options), length))
    seconds: dict[int, list[float]] = {}
    for step in steps[1 + WARM_UP * len(counts) :]:
        seconds.setdefault(1 + step.drafted, []).append(step.seconds - step.draft_seconds)
    return {count: median(seconds[count]) for count in sorted(seconds)}


class _ChainDrafter:
    """Drafts chains of a token that is never accepted, of each length in turn."""

    def __init__(self, lengths: Sequence[int], token: int) -> None:
        self._lengths = cycle(lengths)
        self._token = token

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Do nothing."""

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return a chain of the next length."""
        return chain([self._token] * next(self._lengths))

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Do nothing."""


def _two_ordinary_tokens(model: Any) -> tuple[int, int]:
    """Return two token ids that do not end a sequence."""
    end = model.generation_config.eos_token_id
    ends = set(end) if isinstance(end, list) else {end}
    one, other, *_ = (token for token in range(len(ends) + 2) if token not in ends)
    return one, other


def copy_rate(device: torch.device, size: int, *, repeats: int = 7) -> float:
    """Return the copy rate of a device in bytes per second, counting reads and writes.

    Args:
        device: Device to measure.
        size: Bytes to copy.
        repeats: Number of measured copies, of which the median counts.
    """
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(1 + repeats):  # the first copy touches the memory
        _synchronize(device)
        started = perf_counter()
        target.copy_(source)
        _synchronize(device)
        times.append(perf_counter() - started)
    return 2 * size / median(times[1:])


def read_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of weights that a step reads: all but an untied embedding table, of which it reads few rows."""
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    table: Any = getattr(inputs, "weight", None)
    is_read = table is None or table is getattr(outputs, "weight", None)
    total = sum(weight.nbytes for weight in model.parameters())
    return total if is_read else total - int(table.nbytes)


@torch.no_grad()
def cache_bytes(model: PreTrainedModel, tokens: int = 8) -> float:
    """Return the KV cache's bytes per token, measured on a cache of ``tokens`` tokens."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model(input_ids=torch.zeros((1, tokens), dtype=torch.long, device=model.device), past_key_values=cache)
    held = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    return sum(int(tensor.nbytes) for tensor in held if tensor is not None) / tokens


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def floor(
    model: ModelOrArchitecture = "llama-3.1-8b",
    dtype: Precision = "auto",
    rows: Annotated[int, typer.Option(help="Measure steps of 1, 2, 4, ... up to this number of rows.")] = 128,
    context: Annotated[int, typer.Option(help="Number of tokens before the measured steps.")] = 1024,
    tokenizer: TokenizerName = None,
    device: Device = None,
    as_json: AsJsonToo = False,
) -> None:
    """Compare decoding steps of 1 to --rows rows with reading weights and KV cache once at the device's copy rate."""
    from antiphon.pipelines.cli.preparation import dtype_named

    console.quiet_libraries()
    loaded = load_model_or_random(model, tokenizer=tokenizer, device=device, dtype=dtype_named(dtype)).model
    counts = [*(count for count in ROWS if count < rows), rows]
    with console.err.status("Measuring"):
        found = measure_floor(loaded, rows=counts, context=context).as_dict()
    facts = run_facts("floor", model, loaded, program="python -m benchmarks.bandwidth_floor") | found
    figures = [{key: found[key][index] for key in FLOOR} for index in range(len(found["rows"]))]
    title = f"{model}, {facts['dtype']}, after {found['context']:,} tokens: the floor is {found['floor_ms']:.3f} ms"
    console.out.print(result_table(title, FLOOR, figures))
    console.out.print(
        f"{found['weights_bytes'] / 1e9:.3f} GB of weights and {found['cache_bytes'] / 1e9:.3f} GB of cache, at "
        f"{found['copy_gb_per_s']:.1f} GB/s; {machine_caption(facts)}",
        style="dim",
    )
    if as_json:
        typer.echo(json.dumps(facts))


app = program(floor)

if __name__ == "__main__":
    app()
