"""The other endpoints: completions, responses, models, embeddings, reranking, passages, documents, metrics."""

import base64
import io
import zipfile

import numpy as np
import pytest
from fastapi.testclient import TestClient

from antiphon.accel import LanguageModel
from antiphon.retrieval import HashEmbedder, Passage
from tests.pipelines.server.conftest import Serve
from tests.pipelines.server.test_chat_completions import chat, events, post

QUESTION = [{"role": "user", "content": "How long does honey keep?"}]


def test_completions_continue_texts_and_token_ids(client: TestClient, typist: LanguageModel) -> None:
    own = typist.generate("Bees", max_new_tokens=8)
    result = post(client, "/v1/completions", prompt=["Bees", "Ants"], max_tokens=8, logprobs=1)
    assert [each["text"] for each in result["choices"]] == [own.text, typist.generate("Ants", max_new_tokens=8).text]
    assert len(result["choices"][0]["logprobs"]["token_logprobs"]) == 8
    assert result["usage"]["completion_tokens"] == 16
    assert result["usage"]["prompt_tokens"] == 2 * own.usage.prompt_tokens
    ids = typist.tokenizer.encode("Bees", add_special_tokens=False)
    assert post(client, "/v1/completions", prompt=ids, max_tokens=8)["choices"][0]["text"] == own.text
    streamed = events(client, "/v1/completions", prompt="Bees", max_tokens=8, stream_options={"include_usage": True})
    assert "".join(each["choices"][0]["text"] for each in streamed[:-1]) == own.text
    assert streamed[-1]["usage"]["completion_tokens"] == 8


def test_a_model_with_documents_answers_from_them(client: TestClient, passages: list[Passage]) -> None:
    result = chat(client, model="tiny+docs", messages=QUESTION)
    assert result["usage"]["prompt_tokens"] > 100, "the passages are in the prompt"
    options = {"include_segments": True}
    streamed = events(client, model="tiny+docs", messages=QUESTION, max_tokens=12, stream_options=options)
    given = streamed[0]["passages"]
    assert [len(given), given[0]["text"]] == [2, passages[1].text]
    text = "".join(segment["text"] for each in streamed for segment in each.get("segments", ()))
    assert text == result["choices"][0]["message"]["content"]
    assert client.get(f"/passages/{given[0]['id']}").json()["text"] == passages[1].text
    assert client.get("/passages/none").status_code == 404


def test_embeddings_are_those_of_the_index(client: TestClient) -> None:
    own = HashEmbedder().embed_documents(["bees", "honey"])
    result = post(client, "/v1/embeddings", input=["bees", "honey"])
    assert np.allclose([each["embedding"] for each in result["data"]], own)
    packed = post(client, "/v1/embeddings", input="honey", encoding_format="base64")["data"][0]["embedding"]
    assert np.array_equal(np.frombuffer(base64.b64decode(packed), "<f4"), own[1])
    assert client.post("/v1/embeddings", json={"input": []}).status_code == 400


def test_paths_of_the_machine_are_not_revealed(serve: Serve, passages: list[Passage]) -> None:
    with serve() as client:
        listed = client.get("/documents").json()["data"]
    assert [each["name"] for each in listed] == ["bees.txt"]
    assert [each["id"].partition("/")[0] for each in listed] == ["indexed"]


def test_documents_are_added_found_listed_and_removed(serve: Serve) -> None:
    with serve() as client:
        text = b"# Hives\n\nA hive has frames of wax.\n"
        added = client.post("/documents", files={"file": ("../../etc/hives.md", text)})
        fields = {"id": "uploaded/hives.md", "name": "hives.md", "documents": 1, "passages": 1, "uploaded": True}
        assert added.json() == {**fields, "skipped": [], "warnings": []}
        options = {"include_segments": True}
        body = [{"role": "user", "content": "What frames has a hive of wax?"}]
        result = events(client, model="tiny+docs", messages=body, max_tokens=2, stream_options=options)
        assert "frames of wax" in result[0]["passages"][0]["text"]
        again = client.post("/documents", files={"file": ("hives.md", b"A hive is a box.")})
        assert again.json()["passages"] == 1
        listed = {each["name"]: each["passages"] for each in client.get("/documents").json()["data"]}
        assert listed == {"bees.txt": 3, "hives.md": 1}, "a file of the same name replaces it"
        assert client.delete("/documents", params={"id": "bees.txt"}).status_code == 403
        assert client.delete("/documents", params={"id": "uploaded/hives.md"}).json()["deleted"]
        assert [each["name"] for each in client.get("/documents").json()["data"]] == ["bees.txt"]
        assert client.delete("/documents", params={"id": "uploaded/hives.md"}).status_code == 404


def archive(**files: str | bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made:
        for name, content in files.items():
            made.writestr(name.replace("_", "."), content)
    return data.getvalue()


def test_an_uploaded_archive_gives_several_documents_and_reports_what_is_skipped(serve: Serve) -> None:
    with serve() as client:
        files = {"wax_md": "Wax melts at 62 degrees.", "wing_txt": "A wing has veins."}
        content = archive(**files, tool_exe="MZ", bad_pdf="%PDF-")
        added = client.post("/documents", files={"file": ("hive.zip", content)}).json()
        assert [added["documents"], added["passages"]] == [2, 2]
        assert [each["name"] for each in added["skipped"]] == ["hive.zip/bad.pdf", "hive.zip/tool.exe"]
        assert added["skipped"][1]["reason"] == ".exe files are not read"
        result = events(
            client,
            model="tiny+docs",
            messages=[{"role": "user", "content": "Which degrees melts wax at?"}],
            max_tokens=1,
            stream_options={"include_segments": True},
        )
        assert "62 degrees" in result[0]["passages"][0]["text"]
        again = client.post("/documents", files={"file": ("hive.zip", archive(wax_md="Wax is yellow."))}).json()
        assert again["passages"] == 1
        listed = {each["name"]: each["passages"] for each in client.get("/documents").json()["data"]}
        assert listed == {"bees.txt": 3, "hive.zip": 1}, "the files of the earlier archive are gone"
        assert client.delete("/documents", params={"id": "uploaded/hive.zip"}).json()["deleted"]
        assert [each["name"] for each in client.get("/documents").json()["data"]] == ["bees.txt"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("virus.exe", b"x"), ("empty.txt", b" "), ("binary.txt", b"\0\1\2"), ("broken.pdf", b"%PDF-1.4 nothing")],
)
def test_unreadable_files_are_refused_and_not_stored(client: TestClient, name: str, content: bytes) -> None:
    response = client.post("/documents", files={"file": (name, content)})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "uploads" not in message, "the path of the file on the server is not revealed"
    assert [each["name"] for each in client.get("/documents").json()["data"]] == ["bees.txt"]


def test_metrics_are_counted(serve: Serve) -> None:
    with serve() as client:
        chat(client)
        result = client.get("/metrics").text
        assert 'antiphon_requests_total{path="/v1/chat/completions",status="200"} 1.0' in result
        assert "antiphon_completion_tokens_total 12.0" in result
        assert "antiphon_time_to_first_token_seconds_count 1.0" in result
        assert "antiphon_generations_running 0.0" in result
        assert client.get("/health").json() == {"status": "ok", "running": 0, "waiting": 0}
