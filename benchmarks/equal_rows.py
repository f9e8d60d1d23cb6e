"""Forward passes of as many rows: our graph, and the graph that OpenVINO GenAI makes of the same model.

python -m benchmarks.equal_rows --dtype float32
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from antiphon.accel.drafting.draft import chain
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.paged_inputs import BLOCK_SIZE, CacheShape
from antiphon.accel.engines.openvino.paged_memory import BlockStorage
from antiphon.accel.engines.openvino.runtime import core
from antiphon.accel.engines.protocol import SequenceInput
from antiphon.pipelines.benchmark.facts import machine_caption, run_facts
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.bench import AsJsonToo
from antiphon.pipelines.cli.options import Precision
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.openvino_genai import export_model
from benchmarks.program import program
from benchmarks.shapes import ARCHITECTURES, stored_shape

if TYPE_CHECKING:
    from pathlib import Path

ROWS, CONTEXTS = (1, 3, 5, 6, 8), (64, 520)
"""Numbers of rows, and of cached tokens before them."""

ROW_COLUMNS = {
    "context": "context",
    "rows": "rows",
    "ms": "ours\nms",
    "genai_ms": "GenAI\nms",
    "ratio": "ours /\nGenAI",
    "cpu_ratio": "processor\ntime",
    "change_ms": "another number\nof rows, ms",
    "genai_change_ms": "GenAI's,\nms",
}
LEFT_OUT = ("Const", "Input", "Output")
"""Kinds of nodes that are not executed."""

Forward = Callable[[int, int], Any]
"""Runs a forward pass after a number of cached tokens, and returns the most likely token of each row."""


class ExportedGraph:
    """The export for OpenVINO GenAI with paged attention, as its pipeline compiles it.

    Args:
        graph: The exported graph (XML).
        options: Compile options of the pipeline.
        tokens: Maximum number of cached tokens.
    """

    def __init__(self, graph: Path, options: Mapping[str, Any], tokens: int) -> None:
        from openvino._offline_transformations import paged_attention_transformation

        model = core().read_model(graph)
        paged_attention_transformation(model, False, False)
        self.compiled = core().compile_model(model, "CPU", dict(options))
        self._request: Any = self.compiled.create_infer_request()
        sizes = {name: port.get_partial_shape() for port in self.compiled.inputs for name in port.names}
        caches = [(sizes[f"key_cache.{layer}"], sizes[f"value_cache.{layer}"]) for layer in range(_layers(sizes))]
        shapes = [CacheShape(*(size.get_length() for size in (key[1], key[3], value[3]))) for key, value in caches]
        blocks = -(-tokens // BLOCK_SIZE)
        self._storage = BlockStorage(shapes, blocks, options["KV_CACHE_PRECISION"])
        for block in range(blocks):
            self._storage.clear(block)  # blocks that were never written share one page of memory
        for name, tensor in self._storage.tensors().items():
            self._request.set_tensor(name, tensor)

    def forward(self, context: int, rows: int) -> list[int]:
        """See `Forward`."""
        import openvino

        blocks = -(-(context + rows) // BLOCK_SIZE)
        inputs = {
            "input_ids": np.array(_tokens(rows), dtype=np.int64),
            "position_ids": np.arange(context, context + rows, dtype=np.int64),
            "past_lens": np.array([context], dtype=np.int32),
            "subsequence_begins": np.array([0, rows], dtype=np.int32),
            "block_indices": np.arange(blocks, dtype=np.int32),
            "block_indices_begins": np.array([0, blocks], dtype=np.int32),
            "max_context_len": np.array(context + rows, dtype=np.int32),
        }
        for name, numbers in inputs.items():
            self._request.set_tensor(name, openvino.Tensor(numbers))
        self._request.start_async()
        self._request.wait()
        return [int(each.argmax()) for each in self._request.get_output_tensor(0).data.reshape(rows, -1)]


def our_forward(engine: OpenVINOEngine) -> Forward:
    """Return the function that runs forward passes of our engine."""

    def forward(context: int, rows: int) -> list[int]:
        sequence, tokens = engine.uninitialized_sequence(context), _tokens(rows)
        [logits] = engine.forward([SequenceInput(sequence, tokens[:1], chain(tokens[1:]), needs_best=True)])
        best = [logits.argmax(row) for row in range(-1, rows - 1)]
        sequence.reset()
        return best

    return forward


def compare_rows(
    ours: Forward, theirs: Forward, *, rows: Sequence[int], contexts: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """Time forward passes in turn; return the medians for each context and number of rows.

    In each round every forward pass runs twice in succession. The first one has another number of rows than the one
    before it, the second has as many; ``change_ms`` is the difference.

    Args:
        rounds: Number of rounds, after one that is not measured.
    """
    points = [(context, count) for context in contexts for count in rows]
    times: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for turn in range(rounds + 1):
        for (context, count), (name, forward) in product(points, (("ours", ours), ("theirs", theirs))):
            for again in (False, True):
                wall, cpu = perf_counter(), process_time()
                forward(context, count)
                spent = 1000 * (perf_counter() - wall), 1000 * (process_time() - cpu)
                if turn:
                    times.setdefault((context, count, name, again), []).append(spent)
    return [_figures(times, context, count) for context, count in points]


def _figures(times: Mapping[tuple[Any, ...], list[tuple[float, float]]], context: int, count: int) -> dict[str, Any]:
    """Return the medians over the rounds; ratios are computed in each round."""
    first, second, first_theirs, second_theirs = (
        np.array(times[context, count, name, again]) for name in ("ours", "theirs") for again in (False, True)
    )
    ratio, cpu_ratio = np.median(second / second_theirs, axis=0)
    figures = {
        "ms": np.median(second[:, 0]),
        "genai_ms": np.median(second_theirs[:, 0]),
        "ratio": ratio,
        "cpu_ratio": cpu_ratio,
        "change_ms": np.median(first[:, 0] - second[:, 0]),
        "genai_change_ms": np.median(first_theirs[:, 0] - second_theirs[:, 0]),
    }
    return {"context": context, "rows": count} | {name: round(float(each), 3) for name, each in figures.items()}


def node_counts(compiled: Any) -> Counter[str]:
    """Return how many nodes of each kind a compiled graph executes."""
    kinds = (node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops())
    return Counter(kind for kind in kinds if kind not in LEFT_OUT)


def _layers(names: Iterable[str]) -> int:
    return sum(name.startswith("key_cache.") for name in names)


def _tokens(rows: int) -> list[int]:
    return [1 + index % 200 for index in range(rows)]


def equal_rows(
    model: Annotated[
        str, typer.Option("--model", "-m", help=f"smollm2, a folder, or a size: {', '.join(ARCHITECTURES)}.")
    ] = "smollm2",
    dtype: Precision = "auto",
    rows: Annotated[
        list[int] | None, typer.Option(help="Number of rows; may be repeated.", show_default="1 3 5 6 8")
    ] = None,
    context: Annotated[
        list[int] | None, typer.Option(help="Number of cached tokens; may be repeated.", show_default="64 520")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each forward pass is timed; medians are shown.")] = 20,
    as_json: AsJsonToo = False,
) -> None:
    """Compare forward passes and nodes of our graph with those of OpenVINO GenAI's graph, on the OpenVINO engine."""
    from antiphon.accel import LanguageModel
    from antiphon.pipelines.cli.preparation import dtype_named

    console.quiet_libraries()
    counts, contexts = rows or ROWS, context or CONTEXTS
    place = stored_shape(model) if model in ARCHITECTURES else model
    loaded = LanguageModel.from_pretrained(place, dtype=dtype_named(dtype), engine="openvino")
    engine: Any = loaded.engine
    exported = export_model(loaded.model, prompt_lookup=False)
    theirs = ExportedGraph(exported.graph, exported.options, max(contexts) + max(counts))
    with console.err.status("Measuring"):
        found = compare_rows(our_forward(engine), theirs.forward, rows=counts, contexts=contexts, rounds=rounds)
    nodes = [node_counts(each) for each in (engine.graph._compiled, theirs.compiled)]
    facts = run_facts("rows", model, loaded.model, program="python -m benchmarks.equal_rows")
    facts |= {"rounds": rounds, "passes": found, "nodes": [each.total() for each in nodes]}
    console.out.print(result_table(f"{model}, {facts['dtype']}: forward passes of as many rows", ROW_COLUMNS, found))
    kinds = [{"kind": kind, "ours": nodes[0][kind], "genai": nodes[1][kind]} for kind in sorted(nodes[0] | nodes[1])]
    console.out.print(result_table("Nodes", {"kind": "kind", "ours": "ours", "genai": "GenAI's"}, kinds))
    console.out.print(machine_caption(facts), style="dim")
    if as_json:
        typer.echo(json.dumps(facts))


app = program(equal_rows)

if __name__ == "__main__":
    app()
