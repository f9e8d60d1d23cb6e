"""Text files: encodings are recognised and reported, and no control character reaches an index."""

from pathlib import Path

import pytest

from antiphon.retrieval import load_documents
from antiphon.retrieval.formats.text import decode_text, looks_like_text
from tests.retrieval.sample_files import read_document

SENTENCES = {
    "de": "Die Straße führt über Hügel, und für Fußgänger gibt es schöne Wege.",
    "ru": "Вчера вечером мы пошли в кино, чтобы посмотреть новый фильм.",
    "el": "Χθες το βράδυ πήγαμε στον κινηματογράφο για να δούμε μια νέα ταινία.",
    "ja": "昨日の夜、私たちは小さな町の新しい映画を見に行きました。とても面白かったです。",
    "zh": "昨天晚上我们去电影院看了一部关于小城生活的新电影。大家都觉得非常有意思。",
    "ko": "어제 저녁에 우리는 작은 도시의 생활에 대한 새로운 영화를 보러 극장에 갔습니다.",
}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("language", SENTENCES)
def test_a_byte_order_mark_names_the_encoding_and_is_not_text(encoding: str, language: str) -> None:
    found = decode_text(SENTENCES[language].encode(encoding))
    assert (found.text, found.warnings) == (SENTENCES[language], ())


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("language", SENTENCES)
def test_utf_16_and_utf_32_are_recognised_without_a_mark(encoding: str, language: str) -> None:
    text = f"1. {SENTENCES[language]}\n"
    found = decode_text(text.encode(encoding))
    assert found.text == text
    assert encoding.upper() in found.warnings[0]


@pytest.mark.parametrize(
    ("encoding", "language"),
    [
        ("cp1252", "de"),
        ("cp1251", "ru"),
        ("cp932", "ja"),
        ("iso2022_jp", "ja"),
        ("gb18030", "zh"),
        ("cp949", "ko"),
    ],
)
def test_legacy_encodings_are_detected_and_reported_with_a_confidence(encoding: str, language: str) -> None:
    found = decode_text(SENTENCES[language].encode(encoding))
    assert found.text == SENTENCES[language]
    assert "its encoding was detected: " in found.warnings[0]
    assert "(confidence " in found.warnings[0]


def test_a_detected_encoding_is_reported_when_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_bytes(SENTENCES["ru"].encode("cp1251"))
    [warning] = load_documents([tmp_path]).warnings
    assert warning.path.endswith("old.txt")
    assert warning.reason.startswith("its encoding was detected: cp1251 (confidence ")


def test_a_few_damaged_bytes_do_not_change_the_encoding() -> None:
    found = decode_text("Grüße, schöne Straße, größer. ".encode() * 5 + b"\xff.")
    assert found.text.endswith("\ufffd.")
    assert found.text.startswith("Grüße")
    assert found.warnings == ("1 places are not valid UTF-8 and were replaced",)


@pytest.mark.parametrize("suffix", [".txt", ".md", ".rst", ".html"])
def test_control_characters_do_not_reach_an_index(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(
        "One\x07two\x1b[31m three\x1b[0m and \x7ffour and\u0085five bees dance to show where flowers are. ".encode()
    )
    text = read_document(path).text
    assert all(character.isprintable() or character == "\n" for character in text)
    assert " three " in text
    assert "One two" in text


@pytest.mark.parametrize(
    "data", [b"\x7fELF\x02\x01\x01\x00\x00", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", bytes(range(256))]
)
def test_binary_data_is_not_taken_for_text(data: bytes) -> None:
    assert not looks_like_text(data)
    with pytest.raises(ValueError, match="it is binary"):
        decode_text(data)
