"""The systemd unit and the Compose files: options that exist, times that fit, keys, hardening and a GPU."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from antiphon.pipelines.cli import app

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")


def compose(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text("utf-8"))


def service_of(name: str) -> Any:
    """Return the service of a Compose file."""
    return compose(name)["services"]["antiphon"]


def unit(name: str = "antiphon.service") -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / name, "utf-8")
    return {name: dict(section) for name, section in parser.items() if section}


def seconds(text: str) -> int:
    """Return the seconds of a duration such as 45, 45s or 15min."""
    match = re.fullmatch(r"(\d+)(s|m|min|)", text)
    assert match, text
    return int(match[1]) * (60 if match[2] in ("m", "min") else 1)


def serve_options(words: list[str]) -> dict[str, str]:
    """Return the options of `antiphon serve`, parsed by the command itself; None of them is unknown."""
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    expanded = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", word) for word in words]
    return dict(command.make_context("serve", expanded).params)


UNIT_WORDS = shlex.split(unit()["Service"]["ExecStart"])[2:]
COMMANDS = {
    "unit": (UNIT_WORDS, unit()["Service"]["TimeoutStopSec"]),
    "compose": (service_of("compose.yaml")["command"], "45s"),
    "compose with a GPU": (service_of("compose.gpu.yaml")["command"], "45s"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_server_has_time_to_finish_requests_before_it_is_killed(name: str) -> None:
    words, grace = COMMANDS[name]
    options = serve_options(words)
    assert seconds(grace) > int(options["drain"]) + int(options["drain_delay"]) + 1


def test_compose_mounts_the_folders_of_the_image_and_publishes_its_port() -> None:
    service = service_of("compose.yaml")
    assert service["stop_grace_period"] == "45s"
    [folders] = re.findall(r"mkdir -m 1777 (.*?) &&", DOCKERFILE)
    assert {volume.rsplit(":", 1)[1] for volume in service["volumes"]} == set(folders.split()) - {"/home/antiphon"}
    assert {volume.split(":")[0] for volume in service["volumes"] if volume[0].isalpha()} == set(
        compose("compose.yaml")["volumes"]
    )
    [port] = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    assert [each.rsplit(":", 1)[1] for each in service["ports"]] == [port]
    assert service["ports"][0].startswith("${ANTIPHON_ADDRESS:-127.0.0.1:")
    assert (DEPLOY / service["build"]["context"] / "Dockerfile").is_file()


def test_compose_demands_a_key_and_checks_readiness() -> None:
    service = service_of("compose.yaml")
    assert service["environment"]["ANTIPHON_API_KEY"].startswith("${ANTIPHON_API_KEY:?")
    program = service["healthcheck"]["test"]
    assert program[:3] == ["CMD", "python", "-c"]
    assert "/ready" in program[3]
    compile(program[3], "healthcheck", "exec")


def test_the_gpu_file_adds_a_gpu_and_torch_for_it() -> None:
    base, gpu = service_of("compose.yaml"), service_of("compose.gpu.yaml")
    [device] = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert gpu["command"] == [*base["command"][:4], "--device", "cuda", *base["command"][4:]]
    assert gpu["build"]["args"] == {"TORCH_OPTIONS": ""}
    assert re.search(r'^ARG TORCH_OPTIONS="--extra-index-url \S+/cpu"$', DOCKERFILE, re.MULTILINE)
    assert "pip install --no-cache-dir ${TORCH_OPTIONS} " in DOCKERFILE


def test_the_unit_is_notified_and_hardened() -> None:
    service = unit()["Service"]
    assert service["Type"] == "notify"
    assert service["EnvironmentFile"] == "-/etc/antiphon/environment"
    assert "AF_UNIX" in service["RestrictAddressFamilies"], "the notification is sent over a Unix socket"
    assert {service[name] for name in ("NoNewPrivileges", "PrivateTmp", "ProtectHome")} == {"yes"}
    assert service["ProtectSystem"] == "strict"
    options = serve_options(UNIT_WORDS)
    assert str(options["index"]).startswith("/var/lib/antiphon/"), "only StateDirectory is writable"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for path in DEPLOY.glob("antiphon.s*"):
        text = path.read_text("utf-8").replace("/opt/antiphon/bin/antiphon", sys.executable)
        (tmp_path / path.name).write_text(text)
    command = ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
