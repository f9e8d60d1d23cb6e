"""What the tests measure of tiny models stays out of the user's cache; the embedded models stay where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from platformdirs import user_cache_dir


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    users, own = Path(user_cache_dir("antiphon")), tmp_path_factory.mktemp("cache")
    (own / "antiphon").mkdir()
    for name in ("models", "demo-index"):
        (users / name).mkdir(parents=True, exist_ok=True)
        (own / "antiphon" / name).symlink_to(users / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(own))
        yield
