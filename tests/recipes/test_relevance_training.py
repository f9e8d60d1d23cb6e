"""Relevance training: trained and shipped models score equally, the loss falls, and examples match their passages."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from antiphon.pipelines.quotes import quotable_lines
from antiphon.pipelines.relevance import (
    CrossRelevance,
    EncoderInput,
    Head,
    LineRelevance,
    LineScorer,
    Scale,
    encoder_inputs,
)
from antiphon.retrieval import MiniLMEmbedder, Passage
from recipes.reader.train import LoraPlan
from recipes.reader.written_questions import WrittenQuestion
from recipes.relevance.__main__ import app
from recipes.relevance.cross_encoder import CrossEncoder, cross_encoder_loss, save_cross_encoder, train_cross_encoder
from recipes.relevance.evaluate import relevance_figures
from recipes.relevance.examples import LineExample, PairExample, RelevanceExamples
from recipes.relevance.line_encoder import (
    LineEncoder,
    line_encoder_loss,
    save_line_encoder,
    train_line_encoder,
)

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

BEES = Passage.at("docs/bees.md", 0, "Honey keeps for years. Wax melts at 64 degrees.", {"title": "Bees"})
BOATS = Passage.at("docs/boats.md", 0, "A sloop has one mast. Its keel is heavy.", {"title": "Boats"})
BATCH = [
    LineExample(BEES, "How long does honey keep?", ("Honey keeps for years.",)),
    LineExample(BEES, "Who dances?", ()),
    LineExample(BOATS, "How many masts does a sloop have?", ("A sloop has one mast.",)),
    LineExample(BOATS, "What is heavy?", ("Its keel is heavy.",)),
    LineExample(BOATS, "What is beyond reach?", ("No line of it.",)),
]
PLAN = LoraPlan(steps=6, learning_rate=2e-3, warm_up=1, decay=1e-4, rank=2, alpha=4, save_every=2)


@pytest.fixture(scope="module")
def tokens() -> Iterator[MiniLMEmbedder]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("antiphon.retrieval.embedders.minilm.pick_dtype", lambda device: torch.float32)
        yield MiniLMEmbedder("cpu", engine="torch")


def _model(tokens: MiniLMEmbedder) -> LineEncoder:
    torch.manual_seed(3)
    return LineEncoder(tokens, PLAN, in_half=False)


def _lines(passage: Passage) -> list[str]:
    return [quote.sentence for quote in quotable_lines([passage])[0]]


def _disturb(model: torch.nn.Module) -> None:
    """Make the adapter random, with weights that are exact in bfloat16."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn_like(weight).mul(0.02).bfloat16().float())
            elif "lora_A" in name:
                weight.copy_(weight.bfloat16().float())


def test_training_and_saved_encoder_give_the_same_scores(tokens: MiniLMEmbedder, tmp_path: Path) -> None:
    model = _model(tokens)
    _disturb(model)
    with torch.no_grad():
        questions = [one.question for one in BATCH]
        wanted = model(questions, [next(encoder_inputs(passage, tokens)) for passage in (BEES, BOATS)])
    save_line_encoder(model, tmp_path)
    saved = LineRelevance(MiniLMEmbedder("cpu", engine="torch", adapter=tmp_path), Scale.load(tmp_path))
    lines = [(passage, line) for passage in (BEES, BOATS) for line in _lines(passage)]
    plain = LineRelevance(tokens, Scale.load(tmp_path))
    for row, question in zip(wanted.tolist(), questions, strict=True):
        assert saved.to(question)(lines) == pytest.approx(row, abs=2e-3)
        assert plain.to(question)(lines) != pytest.approx(row, abs=2e-3)


def test_training_lowers_the_loss_and_resumes_after_an_interruption(tokens: MiniLMEmbedder, tmp_path: Path) -> None:
    losses: list[float] = []
    train_line_encoder(
        _model(tokens), lambda _: BATCH, tmp_path / "whole", PLAN, report=lambda _, loss: losses.append(loss)
    )
    assert losses[-1] < 0.7 * losses[0]

    def cut(step: int, loss: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_line_encoder(_model(tokens), lambda _: BATCH, tmp_path / "cut", PLAN, report=cut)
    train_line_encoder(_model(tokens), lambda _: BATCH, tmp_path / "cut", PLAN)
    for name in ("adapter_model.safetensors", "scale.json", "adapter_config.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not list((tmp_path / "cut").glob("training*"))
    assert json.loads((tmp_path / "whole" / "adapter_config.json").read_text())["base_model_name_or_path"] == "minilm"


def test_the_loss_is_that_of_the_right_line_and_of_whether_there_is_one(tokens: MiniLMEmbedder) -> None:
    scores = torch.tensor([[3.0, 0, 0, 0], [-1, -2, 0, 1], [0, 1, 2, 0], [0, 0, 1, 3]])
    loss = line_encoder_loss(lambda questions, readings: scores[: len(questions)], tokens, BATCH)
    answered = scores[[0, 2, 3]]
    among_all = (answered.logsumexp(1) - answered[[0, 1, 2], [0, 2, 3]]).mean()
    own = torch.stack([scores[0, :2].logsumexp(0) - 3, scores[2, 2:].logsumexp(0) - 2, scores[3, 2:].logsumexp(0) - 3])
    softplus = torch.nn.functional.softplus
    whether = torch.stack(
        [softplus(-scores[0, 0]), softplus(scores[1, 0]), softplus(-scores[2, 2]), softplus(-scores[3, 3])]
    )
    others = torch.stack(
        [softplus(torch.tensor(0.0)), softplus(scores[1, 3]), softplus(scores[2, 1]), softplus(torch.tensor(0.0))]
    )
    # there is only one other passage: the question's own passage counts as zero
    assert loss == pytest.approx(
        float(among_all + own.mean() + 0.5 * (whether.mean() + 0.5 * others.mean() / 2)), abs=1e-4
    )


def test_examples_without_lines_raise_no_error(tokens: MiniLMEmbedder) -> None:
    bare = Passage.at("docs/bare.md", 0, "\u200b. Wax melts.")
    batch = [LineExample(bare, "Who dances?", ()), LineExample(bare, "Who sings?", ())]
    assert torch.isfinite(line_encoder_loss(_model(tokens), tokens, batch))


@pytest.fixture(scope="module")
def start(tokens: MiniLMEmbedder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter to start the training from."""
    folder = tmp_path_factory.mktemp("start")
    model = _model(tokens)
    _disturb(model)
    save_line_encoder(model, folder)
    return folder


def test_training_can_start_from_an_adapter(tokens: MiniLMEmbedder, start: Path) -> None:
    model = LineEncoder(tokens, PLAN, in_half=False, start=start)
    saved = LineRelevance(MiniLMEmbedder("cpu", engine="torch", adapter=start), Scale.load(start))
    with torch.no_grad():
        [weights] = model(["Who dances?"], [next(encoder_inputs(BEES, tokens))])
    assert saved.to("Who dances?")([(BEES, line) for line in _lines(BEES)]) == pytest.approx(weights.tolist(), abs=2e-3)


PAIRS = [PairExample(one.passage, one.question, one.lines) for one in BATCH]
WITHOUT = PairExample(BEES, BATCH[0].question, (), without=BATCH[0].lines)
CROSS_PLAN = LoraPlan(steps=6, learning_rate=1e-3, warm_up=1, decay=1e-4, rank=4, alpha=8, save_every=2)


def _cross(tokens: MiniLMEmbedder, start: Path) -> CrossEncoder:
    torch.manual_seed(3)
    return CrossEncoder(tokens, CROSS_PLAN, start, in_half=False)


def test_a_cross_encoder_starts_with_the_scores_of_the_line_encoder(tokens: MiniLMEmbedder, start: Path) -> None:
    reading = next(encoder_inputs(BEES, tokens, "Who dances?"))
    model = _cross(tokens, start)
    alone = MiniLMEmbedder("cpu", engine="torch", adapter=start)
    [read] = alone.token_vectors([reading.text])
    scale = Scale.load(start)
    asked = read.vectors[: len(tokens.token_ids(["Who dances?"])[0])]
    wanted = [scale.of(asked, read.vectors[first:end]) for _, first, end in reading.spans]
    assert model([("Who dances?", reading)])[0].tolist() == pytest.approx(wanted, abs=2e-3)


def test_training_and_saved_cross_encoder_give_the_same_scores(
    tokens: MiniLMEmbedder, start: Path, tmp_path: Path
) -> None:
    model = _cross(tokens, start)
    _disturb(model)
    with torch.no_grad():
        model.head.normal_(0, 1e-3)
        wanted = model([(one.question, next(encoder_inputs(one.passage, tokens, one.question))) for one in PAIRS])
    save_cross_encoder(model, tmp_path)
    encoder = MiniLMEmbedder("cpu", engine="torch", adapter=tmp_path)
    saved = CrossRelevance(encoder, Scale.load(tmp_path), Head.load(tmp_path))
    for weights, one in zip(wanted, PAIRS, strict=True):
        lines = [(one.passage, line) for line in _lines(one.passage)]
        assert saved.to(one.question)(lines) == pytest.approx(weights.tolist(), abs=2e-3)


def test_a_cross_encoder_can_start_from_another_one(tokens: MiniLMEmbedder, start: Path, tmp_path: Path) -> None:
    earlier = _cross(tokens, start)
    _disturb(earlier)
    with torch.no_grad():
        earlier.head.normal_(0, 1e-3)
    save_cross_encoder(earlier, tmp_path)
    readings = [(one.question, next(encoder_inputs(one.passage, tokens, one.question))) for one in PAIRS]
    with torch.no_grad():
        wanted, found = earlier(readings), _cross(tokens, tmp_path)(readings)
    for one, other in zip(wanted, found, strict=True):
        assert other.tolist() == pytest.approx(one.tolist(), abs=5e-3)


def test_cross_encoder_training_lowers_the_loss_and_resumes(
    tokens: MiniLMEmbedder, start: Path, tmp_path: Path
) -> None:
    losses: list[float] = []
    pairs = [*PAIRS, WITHOUT]
    train_cross_encoder(
        _cross(tokens, start),
        lambda _: pairs,
        tmp_path / "whole",
        CROSS_PLAN,
        report=lambda _, loss: losses.append(loss),
    )
    assert losses[-1] < 0.7 * losses[0]

    def cut(step: int, loss: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_cross_encoder(_cross(tokens, start), lambda _: pairs, tmp_path / "cut", CROSS_PLAN, report=cut)
    train_cross_encoder(_cross(tokens, start), lambda _: pairs, tmp_path / "cut", CROSS_PLAN)
    for name in ("adapter_model.safetensors", "scale.json", "head.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("plan", "said"),
    [({"rank": 1, "alpha": 2}, "rank must be 1 or less"), ({"rank": 4, "alpha": 4}, "alpha 1 times its rank")],
)
def test_a_start_that_does_not_fit_is_refused(
    tokens: MiniLMEmbedder, start: Path, plan: dict[str, int], said: str
) -> None:
    with pytest.raises(ValueError, match=rf"has rank 2 and alpha 4; .*{said}"):
        CrossEncoder(tokens, replace(CROSS_PLAN, **plan), start, in_half=False)


def test_the_loss_of_a_pair_is_that_of_its_right_line_among_all_and_none(tokens: MiniLMEmbedder) -> None:
    given = [torch.tensor([3.0, 1.0]), torch.tensor([-1.0, 2.0]), torch.tensor([0.5])]
    read: list[str] = []

    def model(readings: list[tuple[str, EncoderInput]]) -> list[torch.Tensor]:
        read.extend(reading.text for _, reading in readings)
        return given

    loss = cross_encoder_loss(model, tokens, [PAIRS[0], PAIRS[1], WITHOUT])
    none = torch.zeros(1)
    first, second, third = (torch.cat([none, one]).logsumexp(0) for one in given)
    assert loss == pytest.approx(float((first - 3 + second + third) / 3), abs=1e-5)
    assert ["Honey keeps" in text for text in read] == [True, True, False]
    weights = given[2].requires_grad_()
    beyond = cross_encoder_loss(lambda readings: [weights], tokens, [PAIRS[4]])
    beyond.backward()  # type: ignore[no-untyped-call]
    assert (beyond.item(), weights.grad) == (0, torch.zeros(1))


def test_pairs_are_of_every_kind_and_always_the_same() -> None:
    examples = _examples()
    pairs = examples.pairs(3, 60)
    assert pairs == _examples().pairs(3, 60) != examples.pairs(4, 60)
    answered = [one for one in pairs if one.lines]
    without = [one for one in pairs if one.without]
    assert 15 < len(answered) < 45
    assert [one.lines for one in without] == [()] * len(without) != []
    assert all(set(one.lines) | set(one.without) <= set(_lines(one.passage)) for one in pairs)
    kinds: dict[str, set[str]] = defaultdict(set)
    for one in (one for own in examples.asked.values() for one in own):
        kinds[one.kind].add(one.question)
    assert kinds["answered"] == {"Which option gives the mast?", "Which option gives the keel?"}
    assert len(kinds["made"]) > 2
    assert "Who built it?" in kinds["refused"]
    declined = {one.question for one in pairs if not one.lines and not one.without}
    assert declined == {one.question for own in examples.asked.values() for one in own if not one.lines}


def test_figures_count_right_lines_and_pairs() -> None:
    class Known:
        def to(self, question: str) -> LineScorer:
            weights = {BATCH[0].question: [2.0, 1], BATCH[1].question: [0, 1.5], BATCH[2].question: [1.0, 3]}
            return lambda said: weights[question]

    figures = relevance_figures(Known(), BATCH[:3])
    assert (figures.answered, figures.declined, figures.right, figures.separated) == (2, 1, 0.5, 1.0)
    with pytest.raises(ValueError, match="give more documents"):
        relevance_figures(Known(), BATCH[:1])


def _examples() -> RelevanceExamples:
    passages = [
        Passage.at(f"{folder}/{name}.md", 0, f"## {name}\n\n- `{name}`: Sets the {name} of it.\n- `no-{name}`: None.")
        for folder in ("docs", "other")
        for name in ("mast", "keel", "jib")
    ]
    asked = [
        WrittenQuestion(f"docs/{name}", f"Which option gives the {name}?", (f"`{name}`: Sets the {name} of it.",), ())
        for name in ("mast", "keel")
    ]
    return RelevanceExamples(
        passages, [*asked, WrittenQuestion("docs/mast", "Who built it?", (), ("`no-mast`: None.",))], seed=2
    )


def test_examples_are_about_lines_of_their_passage_or_none_and_batches_are_always_the_same() -> None:
    examples = _examples()
    asked = [one for own in examples.asked.values() for one in own]
    assert all(set(one.lines) <= set(_lines(one.passage)) for one in asked)
    assert "Who built it?" in {one.question for one in asked if not one.lines}
    assert {one.question for one in asked if one.lines} >= {"Which option gives the mast?"}
    first, again, other = examples.batch(3, 4), _examples().batch(3, 4), examples.batch(4, 4)
    assert first == again != other
    assert len({one.passage for one in first}) >= 4


def test_passages_without_questions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Of 1 passages none answers a question; give more documents"):
        RelevanceExamples([Passage.at("docs/a.md", 0, "It rained.")], [])


@pytest.mark.parametrize("command", ["line", "cross"])
def test_the_command_trains_and_examines(tmp_path: Path, command: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    questions = []
    for name in ("mast", "keel", "jib", "boom", "hull", "bow", "stern", "tiller", "rudder", "anchor", "oar", "flag"):
        (docs / f"{name}.md").write_text(f"## The {name}\n\nThe {name} is made of wood. It was painted in May.\n")
        line = f"The {name} is made of wood."
        questions.append({"page": f"docs/{name}", "question": f"What is the {name} of?", "answer": [line], "place": []})
        questions.append({"page": f"docs/{name}", "question": "Who sails?", "answer": [], "place": [line]})
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, questions)))
    options = ["--questions", str(file), "--steps", "2", "--dtype", "float32", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [command, str(docs), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "the best line answers 100.0%" in " ".join(done.output.split())
    assert {"adapter_model.safetensors", "adapter_config.json", "scale.json"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
