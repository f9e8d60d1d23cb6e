"""The command `doctor`: report and JSON of one model, errors, the table of families, and its page in the docs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from antiphon.accel.engines.openvino.conversion import windows_of
from antiphon.accel.engines.openvino.runtime import is_installed
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.testing.families import ALL_FAMILIES
from antiphon.accel.testing.family_check import ComparisonResult, FamilyResult, OpenVINOResult
from antiphon.accel.testing.tiny import tiny_model
from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.doctor_report import LEVELS, families_markdown, show_families, try_families

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


def test_a_card_says_what_the_model_can_do_and_why_and_what_a_forward_costs(tiny_folder: Path) -> None:
    shown = doctor(tiny_folder)
    assert shown.exit_code == 0, shown.stderr
    card = " ".join(shown.stdout.split())
    assert "level tree (any draft: branches share one forward pass)" in card
    assert "because its layers take the masks and positions" in card
    assert "LlamaForCausalLM, 95,168 parameters, float32 on cpu" in card
    assert "attention sdpa; one boolean mask" in card
    assert "layers 2 full_attention: looks back to the start" in card
    assert "context 1,024 tokens" in card
    assert "heads 2 query heads to each key head" in card
    assert "packing yes: their keys are read once, not copied" in card
    assert "compiling yes: steps of fixed shapes, by itself on a GPU" in card
    assert "system role yes" in card
    assert "thinking no thinking" in card
    assert "template takes question, two turns, schema, system only, two users" in card
    assert "tools: The chat template of" in card
    assert "One forward after 64 and 918 tokens" in card
    assert [line.split()[0] for line in shown.stdout.splitlines() if re.match(r" +\d+ ", line)] == [
        "1", "2", "4", "8", "16", "32", "64",
    ]  # fmt: skip
    assert shown.stdout.splitlines()[-1] == "→ Nothing to change."


def test_json_is_one_line_with_all_facts(tiny_folder: Path) -> None:
    shown = doctor(tiny_folder, "--json")
    assert shown.exit_code == 0, shown.stderr
    (line,) = shown.stdout.splitlines()
    found = json.loads(line)
    assert found["name"] == str(tiny_folder)
    assert found["template"]["turns"] == "in any order"
    assert (found["level"], found["queries_per_key_head"], list(found["cost"])) == ("tree", 2, ["64", "918"])
    assert [row["rows"][0] for row in found["cost"].values()] == [row["ratio"][0] for row in found["cost"].values()]


def test_rotary_limits_are_on_the_card(tmp_path: Path, tiny_folder: Path) -> None:
    from antiphon.accel.testing.tiny import byte_tokenizer

    cards = {}
    for family in ("phi3-longrope", "llama-dynamic"):
        tiny_model(family).save_pretrained(tmp_path / family)
        byte_tokenizer().save_pretrained(tmp_path / family)
        cards[family] = " ".join(doctor(tmp_path / family).stdout.split())
    assert "change at 52 tokens: no draft reaches over it; the cache is rebuilt there, once" in cards["phi3-longrope"]
    assert "change with every token from 52 on: no draft goes there" in cards["llama-dynamic"]
    assert "→ Keep prompt and answer within 52 tokens" in cards["llama-dynamic"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("smolm2",), "did you mean 'smollm2'?"),
        (("./nowhere",), "There is no model folder './nowhere'"),
        (("empty",), "is no model folder: it has no config.json"),
        (("MODEL", "--device", "abacus"), "There is no device 'abacus' here"),
        (("MODEL", "--markdown"), "--markdown prints the table of families; give --families as well."),
    ],
)
def test_what_cannot_be_examined_is_refused_in_one_sentence(
    arguments: tuple[str, ...], complaint: str, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    shown = doctor(*(str(tiny_folder) if argument == "MODEL" else argument for argument in arguments))
    assert shown.exit_code == 2
    assert shown.stdout == ""
    last = shown.stderr.strip().splitlines()[-1]
    assert last.startswith("antiphon: ")
    assert complaint in last


def test_the_families_named_are_tried_and_sorted_by_what_they_verify() -> None:
    trials = try_families(["mamba2", "bloom", "llama"])
    assert [(trial.family, trial.traits.level) for trial in trials] == [
        ("llama", "tree"), ("bloom", "linear"), ("mamba2", "replay"),
    ]  # fmt: skip
    assert all(trial.passes(mode) for trial in trials for mode in ("greedy", "sampled"))
    assert [trial.results["greedy"]["oracle"].steps for trial in trials] == [9, 9, 9]
    found = json.loads(json.dumps(trials[0].as_dict()))
    assert (found["family"], found["level"], found["greedy"]["oracle"]["tokens"]) == ("llama", "tree", 48)
    if is_installed():
        assert (found["openvino"]["reason"], found["openvino"]["sampled"]["random trees"]["same"]) == ("", True)
        assert "| 9 | no | " in families_markdown(trials[1:])


STAYS = OpenVINOResult({}, "it is another engine")


def trial_of(
    family: str, greedy: ComparisonResult, sampled: ComparisonResult, openvino: OpenVINOResult = STAYS
) -> FamilyResult:
    modes = {"greedy": {"oracle": greedy}, "sampled": {"oracle": sampled}}
    return FamilyResult(family, traits_of(tiny_model(family)), modes, openvino)


GOOD = ComparisonResult(same=True, tokens=48, steps=9, error=3e-6)


def test_a_family_that_is_not_exact_stands_out(capsys: pytest.CaptureFixture[str]) -> None:
    other = ComparisonResult(same=False, tokens=48, steps=12, error=float("inf"))
    drifting = ComparisonResult(same=True, tokens=48, steps=9, error=0.02)
    rows = [trial_of("llama", GOOD, other, OpenVINOResult({"greedy": {"oracle": drifting}}))]
    rows.append(trial_of("gemma3", drifting, GOOD))
    page = families_markdown(rows)
    assert "| llama | tree | full | same | differs | inf | 9 | differs |" in page
    assert "| gemma3 | tree | sliding + full | differs | same | 2e-02 | 9 | no: it is another engine |" in page
    show_families(rows)
    assert "differs" in capsys.readouterr().out


def test_the_page_of_families_is_what_its_command_prints_today() -> None:
    """The page's measured columns are taken as they are; names, levels, layers and reasons are computed again."""
    rows = []
    for family in sorted(ALL_FAMILIES, key=lambda each: list(LEVELS).index(traits_of(tiny_model(each)).level)):
        row = rf"^\| {family} \|.*\| (\d+) \| (no: |)([^|]*) \| [^|]* \|$"
        steps, refused, said = re.findall(row, PAGE, flags=re.MULTILINE)[0]
        traits, trial = (
            traits_of(tiny_model(family)),
            ComparisonResult(same=True, tokens=48, steps=int(steps), error=3e-6),
        )
        reason = said if refused else "" if said.startswith("same") else traits.reason
        windows = [] if reason else [window for window in windows_of(traits) if window]
        openvino = OpenVINOResult({}, reason, None if reason else min(windows, default=None))
        rows.append(trial_of(family, trial, trial, openvino))
    assert families_markdown(rows) == PAGE
