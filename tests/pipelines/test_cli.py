"""The command line: answers, costs, and errors of one sentence for unusable arguments."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from antiphon.pipelines.cli import app

QUESTION = "How many eggs does a queen lay?"


def antiphon(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def ask(index: Path, model: Path, *more: object) -> Result:
    return antiphon("ask", QUESTION, "--index", index, "--model", model, "--max-new-tokens", 30, *more)


def test_help_lists_the_commands_and_loads_nothing_heavy() -> None:
    script = (
        "import sys; from antiphon.pipelines.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers', 'sentence_transformers', 'faiss') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert all(command in run.stdout for command in ("index", "ask", "chat", "demo", "doctor", "bench"))
    assert run.stdout.splitlines()[-1] == "[]"


def test_an_answer_is_followed_by_its_citations_and_its_cost(index_folder: Path, tiny_folder: Path) -> None:
    shown = ask(index_folder, tiny_folder, "--k", 2)
    assert shown.exit_code == 0, shown.stderr
    *_, citations, cost = shown.stdout.splitlines()
    assert citations == "No six words of the answer are quoted verbatim from a passage."
    assert re.match(r"Written by tiny\d+ in \d+\.\d s; 30 tokens, \d+ tokens/s", cost)
    assert re.search(r"; cut off by max_new_tokens; first output after \d+\.\d s, \d+\.\d s in all$", cost)


def test_json_holds_the_whole_answer_and_plain_decoding_the_same_text(index_folder: Path, tiny_folder: Path) -> None:
    drafted, plain = (json.loads(ask(index_folder, tiny_folder, "--json", *more).stdout) for more in ([], ["--plain"]))
    assert drafted["text"] == plain["text"]
    assert plain["steps"]["tokens_per_step"] == 1
    assert drafted["passages"][0]["text"].startswith("A queen lays")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("index", "nowhere", "--out", "x"), "nowhere does not exist; give the path of a file or a folder."),
        (("ask", "?", "--index", "nowhere"), "nowhere"),
        (("ask", "?", "--index", "INDEX", "--model", "MODEL", "--k", "0"), "k is 0"),
        (
            ("ask", "?", "--index", "INDEX", "--model", "MODEL", "--sessions", "typo/x.sqlite"),
            "There is no folder 'typo'",
        ),
        (
            ("ask", "why " * 200, "--index", "INDEX", "--model", "MODEL", "--k", "3", "--max-new-tokens", "999"),
            "context window",
        ),
    ],
)
def test_invalid_input_is_refused_with_one_line(
    arguments: tuple[str, ...],
    complaint: str,
    index_folder: Path,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    places = {"INDEX": str(index_folder), "MODEL": str(tiny_folder)}
    shown = antiphon(*(places.get(argument, argument) for argument in arguments))
    assert shown.exit_code == 2
    assert shown.stdout == ""
    last = shown.stderr.strip().splitlines()[-1]
    assert last.startswith("antiphon: ")
    assert complaint in last
    assert "Traceback" not in shown.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
