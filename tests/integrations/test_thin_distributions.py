"""The distributions in packages/ re-export the integrations, and their versions and dependencies follow ours."""

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.base import BaseLLM

ROOT = Path(__file__).parents[2]
THIN = [
    ("langchain-antiphon", "langchain_antiphon", "antiphon.integrations.langchain", "langchain"),
    ("llama-index-llms-antiphon", "llama_index.llms.antiphon", "antiphon.integrations.llama_index", "llama-index"),
]


def project(folder: Path) -> Any:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize(("name", "thin", "integration", "extra"), THIN, ids=[row[0] for row in THIN])
def test_a_thin_distribution_has_every_name_of_the_integration(
    name: str, thin: str, integration: str, extra: str
) -> None:
    module, ours = importlib.import_module(thin), importlib.import_module(integration)
    assert sorted(module.__all__) == sorted(ours.__all__)
    assert all(getattr(module, each) is getattr(ours, each) for each in ours.__all__)
    described, version = project(ROOT / "packages" / name), project(ROOT)["version"]
    major, minor, _ = map(int, version.split("."))
    assert (described["name"], described["version"]) == (name, version)
    assert described["dependencies"] == [f"antiphon[{extra}]>={major}.{minor},<{major}.{minor + 1}"]
    assert extra in project(ROOT)["optional-dependencies"]


def test_the_llm_is_one_of_llama_index() -> None:
    """The test that LlamaIndex asks of each of its integrations."""
    llm = importlib.import_module("llama_index.llms.antiphon").AntiphonLLM
    assert BaseLLM.__name__ in [kind.__name__ for kind in llm.__mro__]
