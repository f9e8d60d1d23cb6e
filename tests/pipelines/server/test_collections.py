"""Collections of a server: how they are opened and chosen, upload quotas, and filters of their passages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.accel import LanguageModel
from antiphon.pipelines.rag import Rag
from antiphon.pipelines.server.access_control import Access, AccessKeys
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.collections import Collection, UploadQuota, independent_reranker, open_retrievers
from antiphon.pipelines.server.errors import ApiError
from antiphon.pipelines.server.key_file import add_key
from antiphon.pipelines.server.service import Service, make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from antiphon.retrieval.rerankers.maxsim import MaxSimReranker

NAMES = ("law", "team", "wiki")
QUESTION = [{"role": "user", "content": "Who keeps the keys?"}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("indexes")
    for name in NAMES:
        passages = [Passage.at(f"{name}.txt", 0, f"Who keeps the keys of {name}?", {"year": 2020, "lang": "de"})]
        index_passages(
            [*passages, Passage.at("old.txt", 0, "Keys are old.", {"year": 1999})], root / name, HashEmbedder()
        )
    return {name: root / name for name in NAMES}


@pytest.fixture(scope="module")
def key_file(folders: dict[str, Path]) -> Path:
    path = folders["law"].with_name("collections.toml")
    path.write_text("".join(f'[collections.{name}]\nindex = "{name}"\n' for name in NAMES))
    return path


@pytest.fixture(scope="module")
def service(folders: dict[str, Path], key_file: Path, typist: LanguageModel) -> Service:
    collections = [
        Collection(name, Rag(each, typist, k=1), folders[name].with_name(f"{name}-up"), UploadQuota(100, 3))
        for name, each in open_retrievers(folders).items()
    ]
    limits = ServerSettings(max_output_tokens=2)
    return make_service(typist, limits, name="tiny", collections=collections, keys=AccessKeys(("admin",), key_file))


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service), headers={"Authorization": "Bearer admin"}) as client:
        yield client


def message(response: Any, status: int) -> str:
    """Return the error message of a response with this status."""
    assert response.status_code == status, response.text
    return str(response.json()["error"]["message"])


def refusal(service: Service, name: str | None, access: Access, *, write: bool = False) -> tuple[int, str] | None:
    """Return status and message if a collection is refused."""
    try:
        service.collection(name, access, write=write)
    except ApiError as error:
        return error.status, str(error)
    return None


RIGHTS = st.frozensets(st.sampled_from(NAMES))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RIGHTS, RIGHTS, st.sampled_from(NAMES))
def test_a_collection_without_access_looks_as_one_that_does_not_exist(
    service: Service, read: Any, write: Any, name: str
) -> None:
    access = Access("key", "", read, write)
    for changes in (False, True):
        got, unknown = (refusal(service, each, access, write=changes) for each in (name, "none"))
        assert unknown is not None
        if access.may_read(name):
            expected = changes and not access.may_write(name)
            assert got == (
                (403, f"This API key may read the collection {name!r}, but not change it.") if expected else None
            )
        else:
            assert got == (404, unknown[1].replace("'none'", f"{name!r}"))
            assert not [each for each in NAMES if each in unknown[1] and not access.may_read(each)]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RIGHTS)
def test_without_a_name_the_only_readable_collection_is_chosen_or_the_readable_ones_are_listed(
    service: Service, read: Any
) -> None:
    access = Access("key", "", read, frozenset())
    listed = ", ".join(repr(name) for name in NAMES if name in read)
    if len(read) == 1:
        assert [service.collection(None, access).name] == [*read]
    else:
        expected = (400, f"Choose a collection: {listed}.") if read else (404, "This server has no index")
        got = refusal(service, None, access)
        assert got is not None
        assert (got[0], got[1][: len(expected[1])]) == expected


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RIGHTS)
def test_models_and_collections_are_listed_exactly_if_they_may_be_read(service: Service, read: Any) -> None:
    access = Access("key", "", read, frozenset())
    assert [*service.readable(access)] == [name for name in NAMES if name in read]
    assert [*service.readable_models(access)] == ["tiny", *(f"tiny+{name}" for name in NAMES if name in read)]


def test_a_body_names_its_collection_in_a_field_or_in_the_model(client: TestClient) -> None:
    for named in ({"model": "tiny", "collection": "team"}, {"model": "tiny+team"}):
        answer = client.post("/v1/chat/completions", json={"messages": QUESTION, **named}).json()
        assert answer["model"] == "tiny+team"
        assert client.post("/v1/responses", json={"input": "Keys?", **named}).json()["model"] == "tiny+team"
    both = {"model": "tiny+team", "collection": "law", "messages": QUESTION}
    assert "no model 'tiny+team+law'" in message(client.post("/v1/chat/completions", json=both), 404)


def test_a_key_that_sends_too_many_requests_is_told_when_to_retry(client: TestClient, key_file: Path) -> None:
    key = add_key(key_file, "fast", read=["law"], write=[], requests_per_minute=2)
    answers = [client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}) for _ in range(3)]
    assert [each.status_code for each in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].headers["Retry-After"]) <= 60
    assert client.get("/v1/models").status_code == 200, "the limit is that of one key"


def upload(client: TestClient, name: str, content: bytes) -> Any:
    return client.post("/documents", params={"collection": "team"}, files={"file": (name, content)})


def test_an_upload_beyond_the_quota_is_refused_with_the_figures(client: TestClient) -> None:
    assert upload(client, "a.txt", b"a" * 60).status_code == 200
    assert message(upload(client, "b.txt", b"b" * 41), 413).startswith(
        "The collection 'team' may have 100 bytes of uploaded files; it has 60 without this file, which has 41."
    )
    assert upload(client, "a.txt", b"c" * 90).status_code == 200, "a file replaces the one of the same name"
    for name in ("b.txt", "c.txt"):
        assert upload(client, name, b"d").status_code == 200
    refused = upload(client, "d.txt", b"e")
    assert "3 uploaded documents; it has 3 without this file, which has 1." in message(refused, 413)
    assert refused.json()["error"]["code"] == "quota_exceeded"
    listed = client.get("/documents", params={"collection": "team"}).json()["data"]
    assert sorted(each["name"] for each in listed if each["uploaded"]) == ["a.txt", "b.txt", "c.txt"]
    client.delete("/documents", params={"collection": "team", "id": "uploaded/b.txt"})
    assert upload(client, "d.txt", b"e").status_code == 200


def negated_filter(depth: int) -> dict[str, Any]:
    """Return the filter of the year 1999 in `depth` negations."""
    return {"$not": negated_filter(depth - 1)} if depth else {"year": 1999}


def cited(client: TestClient, where: dict[str, Any], path: str = "/v1/chat/completions") -> Any:
    body = {"model": "tiny+law", "messages": QUESTION, "stream": True, "stream_options": {"include_segments": True}}
    return client.post(path, json={**body, "where": where})


def test_an_answer_comes_from_passages_that_match_the_filter(client: TestClient) -> None:
    assert "Keys are old." in cited(client, {"year": {"$lt": 2000}}).text
    assert "Keys are old." not in cited(client, {"lang": "de"}).text
    assert "no passage that matches where" in message(cited(client, {"lang": "fr"}), 400)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ({"year": {"$near": 1}}, "no operator '$near'"),
        ({"year": {"$in": 1}}, "a list of values is needed"),
        ({"source": {"$gt": "/home"}}, "where compares source with $gt; use $eq, $ne or $in."),
        ({"$or": [{"year": 1}, {"$not": {"source": {"$lte": "a"}}}]}, "where compares source with $lte"),
        ({"year": {"$in": [*range(200)]}}, "where has 201 comparisons and operators; the limit is 100."),
        (negated_filter(17), "nested too deeply; the limit is 16"),
        ({"year": 2**63}, "more than 64 bits (for 'year')"),
        ({"year": {"$in": [[2**70]]}}, "more than 64 bits (for 'year')"),
    ],
)
def test_a_filter_that_cannot_be_used_is_refused_with_the_reason(
    client: TestClient, where: dict[str, Any], reason: str
) -> None:
    response = cited(client, where)
    assert reason in message(response, 400)
    assert response.json()["error"]["param"] == "where"


def test_an_index_that_cannot_be_opened_is_named_with_its_collection(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"The collection 'new' cannot be opened: .*missing"):
        open_retrievers({**folders, "new": tmp_path / "missing"})
    with pytest.raises(ValueError, match="The collections 'law' and 'twin' have the same index"):
        open_retrievers({**folders, "twin": folders["law"].parent / "team" / ".." / "law"})


class TokenHashEmbedder(HashEmbedder):
    """An embedder with a vector for each token, as late interaction needs it."""

    vocabulary_size = 300

    def token_vectors(self, texts: Any) -> Any:
        raise NotImplementedError


def test_scores_of_the_common_reranker_do_not_depend_on_the_words_of_an_index(folders: dict[str, Path]) -> None:
    embedder, counts = TokenHashEmbedder(), np.full(TokenHashEmbedder.vocabulary_size, 7)
    index = Retriever.open(folders["law"], embedder=HashEmbedder()).index
    dependent = MaxSimReranker(embedder, counts, 9)
    found = independent_reranker(Retriever(index, embedder, dependent))
    assert isinstance(found, MaxSimReranker)
    assert set(found._idf.tolist()) != set(dependent._idf.tolist())
    assert found._idf.tolist() == MaxSimReranker(embedder)._idf.tolist()
