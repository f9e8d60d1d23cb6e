"""The Python blocks of docs/vector-databases.md run, with a real PostgreSQL server if a block needs one."""

import re
from pathlib import Path

import pytest

from tests.retrieval.servers import postgres, table_address

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

PAGE = (Path(__file__).parents[2] / "docs" / "vector-databases.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ADDRESS = "postgresql://me@127.0.0.1/antiphon?table=passages"
PRINTED = ("in May", "run rotate.sh", "once a year")


@pytest.mark.parametrize("number", range(3))
def test_python_blocks_of_the_vector_database_page_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(BLOCKS) == len(PRINTED)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "keys.md").write_text("To rotate the keys, run rotate.sh as an administrator.\n")
    monkeypatch.chdir(tmp_path)
    code = compile(BLOCKS[number], f"docs/vector-databases.md, block {number}", "exec")
    if ADDRESS in BLOCKS[number]:
        with postgres() as server:
            exec(
                compile(BLOCKS[number].replace(ADDRESS, table_address(server, "passages")), code.co_filename, "exec"),
                {},
            )
    else:
        exec(code, {})
    assert PRINTED[number] in capsys.readouterr().out
