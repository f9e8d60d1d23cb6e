"""Further decoding methods of the speed study: OpenVINO GenAI, a drafter that stays warm, windows of lookahead."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from antiphon.accel.drafting.drafters import Blend, Lookahead, RecyclingTable
from antiphon.pipelines.benchmark.methods import GREEDY, AntiphonGenerate, method_by_name, parse_method
from antiphon.pipelines.models.drafters import window_size
from benchmarks.openvino_genai import (
    GENAI,
    GENAI_LOOKUP,
    GenAIPipelines,
    OpenVINOGenAI,
    parse_lookup_draft_tokens,
)

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.accel.engines.selection import EngineName
    from antiphon.pipelines.benchmark.methods import Job, Method, MethodRun

WARM = "blend-warm"


class WarmBlend:
    """`Blend` as `LanguageModel` uses it: its recycling table learns from each request and serves the next ones.

    The table is cleared when a job is decoded a second time, so no prompt is drafted from its own earlier answer.

    Args:
        method: Decodes with a `Blend` of the table.
        table: The recycling table.
    """

    is_baseline = False

    def __init__(self, method: Method, table: RecyclingTable) -> None:
        self.name, self.method, self.table = method.name, method, table
        self._decoded: set[Job] = set()

    @property
    def engine(self) -> EngineName:
        """Engine that runs the model."""
        return getattr(self.method, "engine", "torch")

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode a job after the earlier jobs of the round. See `Method`."""
        if job in self._decoded:
            self.table.clear()
            self._decoded.clear()
        self._decoded.add(job)
        return self.method(language_model, job, limit)


def study_methods(
    names: Sequence[str],
    num_draft_tokens: int | None,
    windows: Sequence[str] = (),
    *,
    unread: bool = False,
    plain: str = GREEDY,
) -> tuple[Method, ...]:
    """Return the methods of these names, after plain decoding, and lookahead with these windows.

    Args:
        names: Names of `methods_by_name`; ``blend-warm``; or OpenVINO GenAI on the same weights:
            ``openvino-genai``, or ``openvino-genai-lookup:8`` with 8 draft tokens.
        num_draft_tokens: Maximum number of draft tokens of methods that name none; None: selected by the cost model.
        windows: Lookahead windows, such as "7,5,7", each with all the rows that it needs.
        unread: Add each window a second time, without n-grams of the prompt.
        plain: Name of the method that decodes plainly, with which the others are compared.

    Raises:
        ValueError: see `methods_by_name` and `window_size`.
    """
    pipelines = GenAIPipelines()
    named = [_method(name, num_draft_tokens, pipelines) for name in dict.fromkeys((plain, *names))]
    return (*named, *lookahead_methods(windows, unread=unread))


def _method(name: str, num_draft_tokens: int | None, pipelines: GenAIPipelines) -> Method:
    head, _, own = name.partition(":")
    if name == GENAI:
        return OpenVINOGenAI(name, 0, pipelines)
    if head == GENAI_LOOKUP:
        return OpenVINOGenAI(name, parse_lookup_draft_tokens(own), pipelines)
    if not name.startswith(WARM):
        return method_by_name(name, num_draft_tokens)
    _, engine, maximum = parse_method(name, num_draft_tokens)
    table = RecyclingTable()
    return WarmBlend(AntiphonGenerate(name, partial(Blend, recycling=table), maximum, engine), table)


def lookahead_methods(windows: Sequence[str], *, unread: bool = False) -> list[Method]:
    """Return Lookahead with each of these windows; see `study_methods`."""
    methods: list[Method] = []
    for window in dict.fromkeys(windows):
        for reads_prompt in (True, False) if unread else (True,):
            drafter = partial(Lookahead, *window_size(window), prompt_as_reference=reads_prompt)
            name = f"lookahead:{window}" if reads_prompt else f"lookahead:{window},unread"
            methods.append(AntiphonGenerate(name, drafter, drafter().max_rows))
    return methods
