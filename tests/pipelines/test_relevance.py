"""Relevance: lines that answer a question score higher in the context of their passage, which is encoded once."""

from collections.abc import Sequence

import numpy as np
import pytest

from antiphon.pipelines.relevance import (
    CROSS_RELEVANCE,
    MAX_QUESTION_TOKENS,
    RELEVANCE,
    Head,
    LineEncoder,
    bundled_encoders,
    encoder_inputs,
    line_scores,
    short_question,
)
from antiphon.retrieval import HashEmbedder, MiniLMEmbedder, Passage
from antiphon.retrieval.embedders.protocol import TokenVectors
from antiphon.retrieval.encoder_runtime.device import pick_precision
from antiphon.retrieval.encoder_runtime.engine_selection import Engine
from antiphon.retrieval.encoder_runtime.graph import openvino_obstacle

pytestmark = pytest.mark.slow

ENGINES_COMPARED: tuple[Engine, ...] = ("torch", "openvino")
QUESTION = "How long does honey keep?"
BARE = Passage.at("bees.md", 0, "It keeps for years. Wax melts at 64 degrees.")
HEADED = Passage.at("bees.md", 0, BARE.text, {"title": "Bees > Honey"})
SCALE = np.array([3.0, 2.0, -1.0], np.float32)
NO_VECTORS = Head(SCALE, np.zeros(64, np.float32), np.zeros(64, np.float32))
HEAD = Head(SCALE, np.full(64, 0.5, np.float32), np.linspace(-1, 1, 64, dtype=np.float32))


class RecordingEncoder(HashEmbedder):
    """A toy encoder with a window of ten words, which records its inputs."""

    max_tokens = 10

    def __init__(self) -> None:
        super().__init__(64)
        self.read: list[str] = []

    def token_vectors(self, texts: Sequence[str]) -> list[TokenVectors]:
        self.read += texts
        assert all(len(self.token_ids([text])[0]) <= 10 for text in texts)
        return super().token_vectors(texts)


@pytest.fixture(scope="module")
def minilm() -> MiniLMEmbedder:
    """The encoder of the cross-encoder."""
    return MiniLMEmbedder(adapter=CROSS_RELEVANCE)


@pytest.fixture
def encoder() -> RecordingEncoder:
    return RecordingEncoder()


def test_the_bundled_encoders_score_answers_higher_and_use_headings() -> None:
    [bare, melting], [headed, _] = line_scores(QUESTION, [BARE, HEADED])
    assert bare > melting + 2
    assert headed > bare
    assert line_scores("At what temperature does wax melt?", [BARE])[0][1] > 0
    assert line_scores("Who wrote Hamlet?", [BARE])[0][1] < -2
    assert line_scores(QUESTION, []) == []


def test_a_line_is_compared_by_its_mean_and_token_by_token(encoder: RecordingEncoder) -> None:
    [[_, found]] = LineEncoder(encoder, NO_VECTORS, is_cross=False).scores("wax melts fast", [BARE])
    question, line = (
        encoder.token_vectors([text])[0].vectors for text in ("wax melts fast", "wax melts at 64 degrees")
    )
    whole = question.mean(0) @ line.mean(0) / np.linalg.norm(question.mean(0)) / np.linalg.norm(line.mean(0))
    words = (1 + 1 + (question[2] @ line.T).max()) / 3
    assert found == pytest.approx(3 * whole + 2 * words - 1, abs=1e-2)


def test_a_passage_longer_than_the_window_is_encoded_in_parts_with_its_heading(encoder: RecordingEncoder) -> None:
    texts = [f"Line {number} says something else about bees." for number in range(4)]
    passage = Passage.at("bees.md", 0, " ".join(texts), {"title": "Bees > Honey"})
    inputs = [*encoder_inputs(passage, encoder)]
    assert [[line for line, _, _ in each.spans] for each in inputs] == [[text] for text in texts]
    assert all(each.text.startswith("Honey\n") for each in inputs)
    [found] = LineEncoder(encoder, NO_VECTORS, is_cross=False).scores(texts[2], [passage])
    assert max(range(4), key=found.__getitem__) == 2
    assert found[2] == pytest.approx(3 + 2 - 1, abs=1e-2)


def test_the_cross_encoder_encodes_the_passage_after_the_question_and_adds_the_head(encoder: RecordingEncoder) -> None:
    [[_, found]] = LineEncoder(encoder, HEAD, is_cross=True).scores("wax melts", [BARE])
    assert encoder.read == ["wax melts [SEP]\nIt keeps for years.", "wax melts [SEP]\nWax melts at 64 degrees."]
    [[_, alone]] = LineEncoder(encoder, NO_VECTORS, is_cross=False).scores("wax melts", [BARE])
    line = encoder.token_vectors(["wax melts at 64 degrees"])[0].vectors  # the toy encoder ignores context
    head_score = (line @ HEAD.line).mean() + (line @ HEAD.word).max()
    assert found == pytest.approx(alone + float(head_score), abs=1e-2)


@pytest.mark.parametrize("question", ["honey " * 200, "蜂蜜能保存多久" * 40, "https://example.org/" + "a1b2c3" * 100])
def test_a_long_question_is_truncated_to_leave_room_for_the_passage(question: str, minilm: MiniLMEmbedder) -> None:
    short = short_question(question, minilm)
    assert question.startswith(short)
    assert 0 < minilm.count_tokens(short) <= MAX_QUESTION_TOKENS
    head = Head.load(CROSS_RELEVANCE)
    cross_encoder = LineEncoder(minilm, head, is_cross=True)
    assert cross_encoder.scores(question, [BARE]) == cross_encoder.scores(short, [BARE])
    assert head.scale[2] not in cross_encoder.scores(question, [BARE])[0]


def test_special_tokens_in_questions_and_passages_are_treated_as_text(minilm: MiniLMEmbedder) -> None:
    assert short_question("Is [SEP] a mark?", minilm) == "Is a mark?"
    marked = Passage.at("a.md", 0, "It is [SEP] in [MASK] there. Wax melts.")
    [each] = encoder_inputs(marked, minilm, "What melts?")
    [read] = minilm.token_vectors([each.text])
    assert [end for _, _, end in each.spans][-1] == len(read.ids)


def test_the_relevance_is_the_mean_of_both_encoders_and_the_cross_encoder_detects_missing_answers() -> None:
    canteen = Passage.at("handbook.md", 0, "Lunch costs 5.80 euros for staff and 8.40 euros for guests.")
    question = "What does the swimming pool cost for guests?"
    separate, cross = (encoder.scores(question, [canteen])[0][0] for encoder in bundled_encoders())
    assert line_scores(question, [canteen]) == [[pytest.approx((separate + cross) / 2)]]
    assert cross < separate - 2
    assert line_scores("What does lunch cost for guests?", [canteen])[0][0] > 2


def test_openvino_and_torch_give_the_same_scores() -> None:
    if (obstacle := openvino_obstacle("cpu", pick_precision("cpu"))) is not None:
        pytest.skip(obstacle)
    for folder, limit in ((RELEVANCE, 0.1), (CROSS_RELEVANCE, 0.2)):
        one, other = (
            LineEncoder(
                MiniLMEmbedder(engine=engine, adapter=folder), Head.load(folder), is_cross=folder is CROSS_RELEVANCE
            ).scores(QUESTION, [HEADED])[0]
            for engine in ENGINES_COMPARED
        )
        assert one == pytest.approx(other, abs=limit)
