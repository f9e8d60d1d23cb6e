"""The table of tenants: what is kept for one key, user and collection is found by the same ones only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.pipelines.server.tenants import Tenants


def tenants_of(max_tenants: int = 10, prefix_cache_tokens: int = 10) -> Tenants:
    return Tenants(RecyclingTable, max_tenants=max_tenants, prefix_cache_tokens=prefix_cache_tokens)


def cache_of(size: int) -> Any:
    return SimpleNamespace(size=size)


def test_a_tenant_is_one_key_user_and_collection() -> None:
    tenants = tenants_of()
    asked = [
        ("key", None, None),
        ("key", "user", None),
        ("key", None, "docs"),
        ("key", None, "more"),
        ("", "key", None),
    ]
    found = [tenants.of(*each) for each in asked]
    assert [tenants.of(*each) for each in asked] == found
    assert len({id(tenant) for tenant in found}) == len({id(tenant.table) for tenant in found}) == len(asked)
    assert found[0].name == found[2].name != found[1].name, "requests of a key take turns whatever they ask"


def test_the_least_recent_tenant_is_dropped() -> None:
    tenants = tenants_of(max_tenants=2)
    first, second = tenants.of("first", None), tenants.of("second", None)
    assert tenants.of("first", None) is first
    tenants.of("third", None)
    assert tenants.of("first", None) is first
    assert tenants.of("second", None) is not second


def test_prefix_caches_of_all_tenants_together_stay_within_the_limit() -> None:
    tenants = tenants_of(prefix_cache_tokens=10)
    one, other = tenants.of("one", None), tenants.of("other", None)
    tenants.keep(one, [1, 2], cache_of(6))
    tenants.keep(other, [1, 3], cache_of(4))
    assert tenants.cached_tokens == 10
    newest = cache_of(5)
    tenants.keep(other, [1, 4], newest)
    assert tenants.cached_tokens == 9
    assert one.cached_tokens == 0
    assert other.take([1, 4, 7]) is newest, "the longest common prefix"
    assert other.take([9]).size == 0
