from __future__ import annotations

from headrace.io import FilePool


def test_the_least_recently_used_is_let_go() -> None:
    pool = FilePool(2)
    for key in "ab":
        pool.make_room()
        pool.put(key, key.upper())
    assert pool.get("a") == "A"
    pool.make_room()
    pool.put("c", "C")
    assert [pool.get(key) for key in "abc"] == ["A", None, "C"]
    pool.drop("a")
    pool.drop("a")
    assert len(pool) == 1
