"""The contract of embedders, checked for each one: shapes, lengths, order, and loading by name."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub.errors import OfflineModeIsEnabled

from antiphon.retrieval import (
    Embedder,
    HashEmbedder,
    MiniLMEmbedder,
    RayEmbedder,
    SentenceTransformerEmbedder,
    TokenEmbedder,
    load_embedder,
)
from antiphon.retrieval.embedders.minilm import _folder, load_minilm, read_verified
from antiphon.retrieval.encoder_runtime.device import pick_precision

pytestmark = pytest.mark.slow

CLOSE = 1e-5 if pick_precision("cpu") == "float32" else 2e-2
"""The tolerance between vectors of one text in two batches, in the precision of this machine."""

TEXTS = [
    "The cat sleeps on the warm stove.",
    "Inflation rose by two percent last year.",
    "a",
    "Photosynthesis turns light into sugar. " * 5,
    "",
    "漢字 🙂",
]


EMBEDDERS: dict[str, Callable[[pytest.FixtureRequest], Embedder]] = {
    "hash": lambda request: HashEmbedder(),
    "hash of 64": lambda request: HashEmbedder(64),
    "minilm": lambda request: request.getfixturevalue("minilm"),
    "sentence-transformers": lambda request: SentenceTransformerEmbedder(
        request.getfixturevalue("toy_folder"), device="cpu"
    ),
}


@pytest.fixture(scope="module", params=EMBEDDERS)
def embedder(request: pytest.FixtureRequest) -> Embedder:
    return EMBEDDERS[request.param](request)


def test_vectors_are_float32_of_length_one_in_the_order_of_the_texts(embedder: Embedder) -> None:
    vectors = embedder.embed_documents(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dim)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert np.allclose(embedder.embed_documents([text])[0], vector, atol=CLOSE)


def test_no_texts_give_an_empty_array_of_the_right_dimension(embedder: Embedder) -> None:
    assert embedder.embed_documents([]).shape == (0, embedder.dim)
    assert embedder.embed_queries([]).shape == (0, embedder.dim)


def test_text_is_cut_off_at_the_length_limit(embedder: Embedder) -> None:
    """Text within the limit changes the vector, and text after it does not."""
    fits = " ".join("ab" for _ in range(embedder.max_tokens // embedder.count_tokens("ab")))
    fits += " a" * (embedder.max_tokens - embedder.count_tokens(fits))
    assert embedder.count_tokens(fits) == embedder.max_tokens
    whole, longer, shorter = embedder.embed_documents([fits, fits + " b b b", fits[: fits.rindex(" ")] + " b"])
    assert np.abs(whole - longer).max() <= CLOSE
    assert np.abs(whole - longer).max() < np.abs(whole - shorter).max()


@pytest.mark.parametrize(("texts", "message"), [("one", "texts is one string"), (["a", None], "Text 1 is NoneType")])
def test_anything_but_a_list_of_texts_is_refused(embedder: Embedder, texts: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        embedder.embed_documents(texts)  # type: ignore[arg-type]


def test_fingerprints_are_stable_and_identify_the_embedder(embedder: Embedder) -> None:
    expected = {
        "hash": ("hash:words:256", "hash:words:64"),
        "minilm": ("sha256-53aa51172d142c89:mean:256",),
    }.get(embedder.name)
    if expected:
        assert embedder.fingerprint in expected
    else:
        again = SentenceTransformerEmbedder(embedder.name, device="cpu")
        assert again.fingerprint == embedder.fingerprint
        assert embedder.fingerprint.startswith("sha256-")
        assert embedder.fingerprint.endswith(":cls:48")


def test_token_vectors_belong_to_the_tokens_of_the_text(embedder: Embedder) -> None:
    if not isinstance(embedder, TokenEmbedder):
        assert embedder.name not in ("minilm", "hash")
        return
    ids = embedder.token_ids(TEXTS)
    for text, one, tokens in zip(TEXTS, ids, embedder.token_vectors(TEXTS), strict=True):
        assert one.tolist() == tokens.ids.tolist()
        assert tokens.vectors.shape == (len(one), embedder.dim)
        assert np.allclose(np.linalg.norm(tokens.vectors, axis=1), 1, atol=1e-5)
        assert all(0 <= token < embedder.vocabulary_size for token in one)
        if text:
            assert len(one) == embedder.count_tokens(text)


def test_minilms_vectors_are_those_of_sentence_transformers(minilm: MiniLMEmbedder) -> None:
    theirs = SentenceTransformerEmbedder(_folder(), device="cpu").embed_documents(TEXTS)
    assert np.allclose(minilm.embed_documents(TEXTS), theirs, atol=CLOSE)
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(_folder()), device="cpu", model_kwargs={"dtype": pick_precision("cpu")})
    states = model.encode(TEXTS, output_value="token_embeddings")
    for tokens, rows in zip(minilm.token_vectors(TEXTS), states, strict=True):
        inner = rows.float().numpy()[1:-1]
        assert np.allclose(tokens.vectors, inner / np.linalg.norm(inner, axis=1, keepdims=True), atol=CLOSE)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")
def test_an_adapter_is_merged_as_peft_merges_it_and_has_another_fingerprint(
    minilm: MiniLMEmbedder, tmp_path: Path
) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    torch.manual_seed(1)
    config = LoraConfig(r=2, lora_alpha=6, target_modules=["query", "dense"], init_lora_weights=False)
    get_peft_model(load_minilm(), config).save_pretrained(str(tmp_path), save_embedding_layers=False)
    merged = PeftModel.from_pretrained(load_minilm(), tmp_path).merge_and_unload()
    ours = load_minilm(tmp_path)
    for name, weight in merged.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], weight)
    adapted = MiniLMEmbedder("cpu", engine="torch", adapter=tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"r": 2, "lora_alpha": 7}')
    assert MiniLMEmbedder("cpu", engine="torch", adapter=tmp_path).fingerprint != adapted.fingerprint
    assert adapted.fingerprint.startswith(f"{minilm.fingerprint}:lora-")
    assert not np.allclose(adapted.embed_documents(TEXTS), minilm.embed_documents(TEXTS), atol=CLOSE)


def test_the_models_own_prompt_for_questions_is_used(toy_folder: Path) -> None:
    embedder = SentenceTransformerEmbedder(toy_folder, device="cpu")
    assert np.allclose(embedder.embed_queries(["x"]), embedder.embed_documents(["ask x"]), atol=CLOSE)
    assert not np.allclose(embedder.embed_queries(["x"]), embedder.embed_documents(["x"]), atol=CLOSE)


def test_prompts_are_parameters_or_those_of_a_family_and_belong_to_name_and_fingerprint(
    toy_folder: Path, tmp_path: Path
) -> None:
    plain = SentenceTransformerEmbedder(toy_folder, device="cpu")
    given = SentenceTransformerEmbedder(toy_folder, device="cpu", query_prompt="q: ", document_prompt="d: ")
    assert np.allclose(given.embed_documents(["text"]), plain.embed_documents(["d: text"]), atol=CLOSE)
    assert np.allclose(given.embed_queries(["text"]), plain.embed_documents(["q: text"]), atol=CLOSE)
    assert given.fingerprint != plain.fingerprint
    assert load_embedder(given.name, "cpu").fingerprint == given.fingerprint
    family = Path(shutil.copytree(toy_folder, tmp_path / "e5-small"))
    (family / "config_sentence_transformers.json").unlink()  # which has the prompt "ask "
    assert load_embedder(str(family), "cpu").name == f"{family}?query=query%3A%20&document=passage%3A%20"
    with pytest.raises(ValueError, match="The embedder 'minilm' takes no prompts"):
        load_embedder("minilm?query=q")


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_model_with_code_of_its_own_is_refused_and_other_settings_have_another_fingerprint(
    toy_folder: Path, tmp_path: Path, file: str
) -> None:
    folder = Path(shutil.copytree(toy_folder, tmp_path / "copy"))
    before = SentenceTransformerEmbedder(folder, device="cpu").fingerprint
    path = folder / file
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"note": "changed"}))
    assert SentenceTransformerEmbedder(folder, device="cpu").fingerprint != before
    (folder / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}})
    )
    with pytest.raises(ValueError, match=r"needs code of its own \(trust_remote_code\), which is not run here"):
        SentenceTransformerEmbedder(folder, device="cpu")


def test_other_weights_have_another_fingerprint(toy_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(toy_folder, tmp_path / "copy"))
    same = SentenceTransformerEmbedder(copy, device="cpu").fingerprint
    assert same == SentenceTransformerEmbedder(toy_folder, device="cpu").fingerprint
    weights = next(copy.rglob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert SentenceTransformerEmbedder(copy, device="cpu").fingerprint != same


def test_a_model_in_the_cache_is_used_as_it_is_without_asking_the_hub(
    toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has the layout of the hub, whose commit is part of the fingerprint."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--nobody--toy"
    shutil.copytree(toy_folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    asked: list[str] = []

    def refuse(url: str, **_: object) -> None:
        asked.append(url)
        raise OfflineModeIsEnabled(url)

    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", refuse)
    embedder = load_embedder("nobody/toy", "cpu")
    assert asked == []
    assert (embedder.name, embedder.fingerprint) == ("nobody/toy", f"nobody/toy@{commit}:cls:48")
    folder = SentenceTransformerEmbedder(toy_folder, device="cpu")
    assert np.allclose(embedder.embed_documents(TEXTS), folder.embed_documents(TEXTS), atol=CLOSE)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="The embedder 'nobody/other' cannot be loaded from the hub or its cache"):
        load_embedder("nobody/other", "cpu")


@pytest.mark.parametrize("name", ["bert", "", "no/such/model/here", "MiniLM"])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"No embedder is named '{name}'; known are auto, minilm, bge-m3, hash, a fold"
    ):
        load_embedder(name)


def test_weights_with_another_checksum_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"other")
    with pytest.raises(ValueError, match=r"model\.safetensors is not the expected file"):
        read_verified(path, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db")


RAY_SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from antiphon.retrieval import HashEmbedder, Passage, RayEmbedder, Retriever, index_passages

texts = [f"Colony {number} has {number % 7} queens." for number in range(50)]
spread = RayEmbedder("hash", workers=2, batch=8)
assert np.array_equal(spread.embed_documents(texts), HashEmbedder().embed_documents(texts))
folder = sys.argv[1]
index_passages([Passage.at("bees.txt", 0, text) for text in texts], folder, spread)
print(Retriever.open(folder).search(texts[31], k=1)[0].text)
"""


@pytest.mark.exhaustive
def test_workers_compute_the_vectors_of_the_plain_embedder(tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="pip install -e '.[ray]'")
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", RAY_SCRIPT, f"{tmp_path}/index"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "Colony 31 has 3 queens."


@pytest.mark.exhaustive
def test_without_ray_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.data", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'antiphon\[ray\]'"):
        RayEmbedder("hash")
