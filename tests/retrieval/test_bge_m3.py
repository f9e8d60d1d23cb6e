"""The three outputs of BGE-M3, on a tiny random model in the layout of its folder."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

from antiphon.retrieval import (
    BgeM3Embedder,
    MaxSimReranker,
    Passage,
    Retriever,
    SentenceTransformerEmbedder,
    index_passages,
    lexical_score,
)
from antiphon.retrieval.embedders.protocol import TokenEmbedder
from antiphon.retrieval.encoder_runtime.device import pick_dtype

HIDDEN = 16
CLOSE = 1e-5 if pick_dtype("cpu").itemsize == 4 else 2e-2
TEXTS = ["the cat sat on the mat", "a dog", "cat cat zebra"]
PIECES = ["<s>", "<pad>", "</s>", "<unk>", *("▁" + word for word in ["the", "cat", "sat", "on", "mat", "a", "dog"])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("m3")
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in PIECES], unk_id=3, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", model_max_length=64, **names
    ).save_pretrained(root / "xlm")
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=len(PIECES),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=66,
        type_vocab_size=1,
        initializer_range=0.5,
    )
    XLMRobertaModel(config).save_pretrained(root / "xlm")
    modules = [Transformer(str(root / "xlm"), max_seq_length=32), Pooling(HIDDEN, "cls"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(root / "model"))
    for name, out in (("sparse", 1), ("colbert", HIDDEN)):
        torch.save(torch.nn.Linear(HIDDEN, out).state_dict(), root / "model" / f"{name}_linear.pt")
    return root


@pytest.fixture(scope="module")
def embedder(folder: Path) -> BgeM3Embedder:
    return BgeM3Embedder(folder / "model", device="cpu")


def plain(folder: Path, text: str, head: str) -> tuple[list[int], torch.Tensor]:
    """Return the token ids of a text, and the output of one head after a forward pass in the embedder's precision."""
    ids = [0, *(PIECES.index("▁" + word) if "▁" + word in PIECES else 3 for word in text.split()), 2]
    model = AutoModel.from_pretrained(folder / "xlm", dtype=pick_dtype("cpu")).eval()
    weights = torch.load(folder / "model" / f"{head}_linear.pt", weights_only=True)
    with torch.inference_mode():
        states = model(input_ids=torch.tensor([ids])).last_hidden_state[0].float()
        return ids, states @ weights["weight"].T + weights["bias"]


def test_it_is_a_token_embedder_with_the_dense_vectors_of_sentence_transformers(
    folder: Path, embedder: BgeM3Embedder
) -> None:
    plainly = SentenceTransformerEmbedder(folder / "model", device="cpu")
    assert isinstance(embedder, TokenEmbedder)
    assert np.allclose(embedder.embed_documents(TEXTS), plainly.embed_documents(TEXTS))
    assert np.allclose(embedder.embed_queries(TEXTS), plainly.embed_queries(TEXTS))
    assert (embedder.fingerprint, embedder.dim, embedder.name) == (plainly.fingerprint, HIDDEN, plainly.name)
    assert (embedder.vocabulary_size, embedder.max_tokens) == (len(PIECES), 30)


def test_token_vectors_are_the_colbert_head_without_special_tokens(folder: Path, embedder: BgeM3Embedder) -> None:
    for text, tokens in zip(TEXTS, embedder.token_vectors(TEXTS), strict=True):
        ids, expected = plain(folder, text, "colbert")
        unit = torch.nn.functional.normalize(expected[1:-1], dim=-1).numpy()
        assert tokens.ids.tolist() == ids[1:-1]
        assert np.allclose(tokens.vectors, unit, atol=CLOSE)
    assert [row.tolist() for row in embedder.token_ids(TEXTS)] == [
        t.ids.tolist() for t in embedder.token_vectors(TEXTS)
    ]


def test_lexical_weights_are_the_maximum_per_word_without_special_tokens(folder: Path, embedder: BgeM3Embedder) -> None:
    found = embedder.lexical_weights(TEXTS)
    assert any(found), "else this test would show nothing"
    for text, weights in zip(TEXTS, found, strict=True):
        ids, values = plain(folder, text, "sparse")
        expected: dict[int, float] = {}
        for token, value in zip(ids, values[:, 0].tolist(), strict=True):
            if value > 0 and token > 3:
                expected[token] = max(value, expected.get(token, 0.0))
        assert weights == pytest.approx(expected, abs=CLOSE)
    assert lexical_score({5: 2.0, 7: 1.0}, {5: 0.5, 9: 3.0}) == 1.0
    assert (embedder.token_vectors([]), embedder.lexical_weights([])) == ([], [])


def test_an_index_of_dense_vectors_is_reranked_by_token_vectors(
    folder: Path, embedder: BgeM3Embedder, tmp_path: Path
) -> None:
    passages = [Passage.at("a.txt", number, text) for number, text in enumerate(TEXTS)]
    index_passages(passages, tmp_path, SentenceTransformerEmbedder(folder / "model", device="cpu"))
    retriever = Retriever.open(tmp_path, embedder=embedder)
    assert isinstance(retriever.reranker, MaxSimReranker)
    assert len(retriever.search("the cat", 3)) == 3


def test_a_folder_without_heads_is_refused(toy_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"The head of the embedder .* cannot be loaded"):
        BgeM3Embedder(toy_folder, device="cpu")


@pytest.mark.parametrize(("name", "kind"), [("sparse", "torn"), ("colbert", "foreign"), ("sparse", "text")])
def test_an_invalid_head_is_refused_with_the_name_of_its_file(
    folder: Path, tmp_path: Path, name: str, kind: str
) -> None:
    shutil.copytree(folder / "model", tmp_path / "model")
    path = tmp_path / "model" / f"{name}_linear.pt"
    if kind == "torn":
        path.write_bytes(path.read_bytes()[:-100])
    elif kind == "text":
        path.write_text("version https://git-lfs.github.com/spec/v1")
    else:
        torch.save({"something": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=rf"{name}_linear\.pt holds no linear head"):
        BgeM3Embedder(tmp_path / "model", device="cpu")


def test_a_head_of_another_width_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "model", tmp_path / "model")
    torch.save(torch.nn.Linear(HIDDEN * 2, 1).state_dict(), tmp_path / "model" / "sparse_linear.pt")
    with pytest.raises(ValueError, match=r"sparse_linear\.pt holds a weight of \(1, 32\).*states have 16 numbers"):
        BgeM3Embedder(tmp_path / "model", device="cpu")
