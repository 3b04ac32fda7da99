"""Which records are kept: the rules in their order, and a function of the user's that may do anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from headrace.errors import ConfigError, HeadraceError
from headrace.preparing.filters import (
    MAX_REASON_CHARS,
    Filters,
    FilterSpec,
    check_filters,
    function_fingerprint,
    load_function,
)
from headrace.preparing.sources.block import Block

LIMITS = st.none() | st.integers(0, 8)


def block(*columns: list[str], records: list[dict[str, Any]] | None = None) -> Block:
    """A block of records, on every second line."""
    count = len(columns[0])
    return Block(
        texts=list(columns),
        lines=np.arange(count) * 2,
        places=np.arange(count) * 100,
        blank_lines=np.arange(count) * 2 + 1,
        bad=[],
        input_bytes=100 * count,
        records=records,
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; modules that are loaded from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def module(folder: Path) -> Path:
    return folder / "my_filters.py"


def ask(module: Path, body: str, *records: dict[str, Any], **limits: int) -> tuple[list[tuple[int, str]], Any]:
    """What a function of this body says of records, each with a text of as many letters as its ``n``."""
    module.write_text(f"import numpy as np\n\ndef check(record):\n    {body}\n")
    filters = Filters(FilterSpec(function="my_filters:check", **limits))
    given = block(["a" * record.get("n", 0) for record in records], records=list(records))
    return asked(filters, given)


def asked(filters: Filters, given: Block, columns: list[list[str]] | None = None) -> tuple[list[Any], list[Any]]:
    """Index and reason of the records that are dropped, and index and message of those that are bad."""
    found = sorted(filters.by_record(given, columns))
    dropped = [(index, reason) for index, reason, message in found if not message]
    return dropped, [(index, message) for index, _, message in found if message]


@given(
    texts=st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), max_size=12),
    low=LIMITS,
    high=LIMITS,
    is_joined=st.booleans(),
)
@example(texts=[("\U0001f600", ""), ("e\u0301", ""), ("abc", "")], low=2, high=2, is_joined=False)
def test_lengths_in_characters(
    texts: list[tuple[str, str]], low: int | None, high: int | None, is_joined: bool
) -> None:
    columns = [[first for first, _ in texts], [second for _, second in texts]]
    wanted = []
    for index, (first, second) in enumerate(texts):
        length = len(first) + len(second) + is_joined
        if low is not None and length < low:
            wanted.append((index, "min_chars"))
        elif high is not None and length > high:
            wanted.append((index, "max_chars"))
    filters = Filters(FilterSpec(min_chars=low, max_chars=high))
    joined = [[f"{first} {second}" for first, second in texts]]
    # With limits that contradict each other both rules apply to a record; that is refused before.
    if low is None or high is None or low <= high:
        assert asked(filters, block(*columns), joined if is_joined else None) == (wanted, [])


@given(lengths=st.lists(st.integers(0, 9), max_size=12), low=LIMITS, high=LIMITS)
def test_lengths_in_tokens(lengths: list[int], low: int | None, high: int | None) -> None:
    wanted = [
        (index, "min_tokens" if low is not None and length < low else "max_tokens")
        for index, length in enumerate(lengths)
        if (low is not None and length < low) or (high is not None and length > high)
    ]
    if low is None or high is None or low <= high:
        found = Filters(FilterSpec(min_tokens=low, max_tokens=high)).by_length(np.array(lengths, np.int64))
        assert found == wanted


def test_answers_of_a_function(module: Path) -> None:
    body = "return [True, False, np.True_, np.False_, 'not English', 'a' * 100][record['k']]"
    dropped, failures = ask(module, body, *({"k": k} for k in range(6)))
    assert dropped == [(1, "filter"), (3, "filter"), (4, "filter:not English"), (5, "filter:" + "a" * 100)]
    assert failures == []
    assert MAX_REASON_CHARS == 100


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("pass", "returned None: it must"),
        ("return 1", "returned int 1: it must"),
        ("return ''", "returned str '': it must"),
        ("return 'a\\nb'", r"returned str 'a\nb': it must"),
        ("return '\\ud800'", "returned str"),
        ("return 'a' * 101", "1 to 100 printable characters"),
        ("return ['x'] * 1000", "returned list"),
        ("return record['nothing']", "failed: KeyError: 'nothing' (my_filters.py, line 5: return record['nothing'])"),
        ("raise ValueError('a\\nb')", "failed: ValueError: a b (my_filters.py, line 5: raise"),
        ("raise SystemExit(3)", "failed: SystemExit: 3 (my_filters.py, line 5"),
        ("return int('x')", "failed: ValueError: invalid literal"),
    ],
)
def test_a_function_that_fails_makes_the_record_bad(module: Path, body: str, message: str) -> None:
    dropped, failures = ask(module, f"if record['n'] == 2: return True\n    {body}", {"n": 2}, {"n": 3})
    assert dropped == []
    [(index, found)] = failures
    assert index == 1
    assert message in found
    assert "filter my_filters:check" in found
    assert len(found) < 700
    assert "\n" not in found


def test_a_wrong_signature_has_no_line(module: Path) -> None:
    module.write_text("def check():\n    return True\n")
    filters = Filters(FilterSpec(function="my_filters:check"))
    assert asked(filters, block(["a"], records=[{}]))[1] == [
        (0, "filter my_filters:check failed: TypeError: check() takes 0 positional arguments but 1 was given")
    ]
    assert asked(filters, block([], records=[])) == ([], [])


def test_the_first_rule_counts(module: Path) -> None:
    """The function is not asked where the length decides."""
    body = "assert 2 <= record['n'] <= 4; return record['n'] != 3"
    dropped, failures = ask(module, body, *({"n": n} for n in range(7)), min_chars=2, max_chars=4)
    assert dropped == [(0, "min_chars"), (1, "min_chars"), (3, "filter"), (5, "max_chars"), (6, "max_chars")]
    assert failures == []


def test_records_that_were_not_read(module: Path) -> None:
    module.write_text("def check(record):\n    return True\n")
    filters = Filters(FilterSpec(function="my_filters:check"))
    for records in (None, [{}]):
        with pytest.raises(HeadraceError, match="records"):
            asked(filters, block(["a", "b"], records=records))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min_chars": -1}, "min_chars.*-1"),
        ({"max_tokens": -5}, "max_tokens.*-5"),
        ({"min_chars": 3, "max_chars": 2}, "min_chars.*3.*max_chars.*2"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens.*3.*max_tokens"),
    ],
)
def test_limits_that_cannot_be(limits: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_filters(FilterSpec(**limits))


def test_limits_that_can_be() -> None:
    check_filters(FilterSpec())
    check_filters(FilterSpec(min_chars=0, max_chars=0, min_tokens=2, max_tokens=2))


# ``module:function``: found as ``python -m`` finds modules, or refused with what is wrong.


@pytest.fixture
def here(folder: Path) -> Path:
    """With a module, a package and broken ones."""
    (folder / "quality.py").write_text(
        "import os.path\n\ndef is_good(record):\n    return True\n\nLIMIT = 3\n\n"
        "class Kinds:\n    @staticmethod\n    def is_code(record):\n        return False\n"
    )
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "inner.py").write_text("from quality import is_good\n\ndef other(record):\n    return 'x'\n")
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "torn.py").write_text("def f(:\n")
    (folder / "leaves.py").write_text("raise SystemExit(1)\n")
    (folder / "lacking.py").write_text("import no_such_module_at_all\n")
    return folder


def test_loads(here: Path) -> None:
    assert load_function("quality:is_good")({}) is True
    assert load_function("quality:Kinds.is_code")({}) is False
    assert load_function("pack.inner:other")({}) == "x"
    assert load_function("os.path:exists") is os.path.exists
    assert sys.path[0] == str(here)
    assert sys.path.count(str(here)) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quality", "module:function"),
        (":is_good", "module:function"),
        ("quality:is good", "module:function"),
        ("qualty:is_good", "'qualty'.*'quality'"),
        ("pack.innr:other", r"'pack\.innr'"),
        ("nothing_like_it.a:b", "'nothing_like_it'$"),
        ("quality:is_god", r"'is_god'.*quality\.py.*'is_good'"),
        ("quality:Kinds.is_cod", "'is_cod'.*'is_code'"),
        ("quality:zzz", r"'zzz' .*quality\.py\)$"),
        ("quality:LIMIT", "int$"),
        ("quality:LIMIT.x", "'x'"),
        ("broken:f", "ZeroDivisionError"),
        ("torn:f", "SyntaxError"),
        ("leaves:f", "SystemExit"),
        ("lacking:f", "'no_such_module_at_all'"),
    ],
)
def test_refuses(here: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_function(name)
    assert repr(name) in str(caught.value)


def test_the_fingerprint_follows_the_source(here: Path) -> None:
    first = function_fingerprint("quality:is_good")
    assert first == function_fingerprint("quality:is_good")
    # The name is not part of it, the file is; a function from elsewhere counts with both files.
    assert first == function_fingerprint("quality:Kinds.is_code")
    through = function_fingerprint("pack.inner:is_good")
    own = function_fingerprint("pack.inner:other")
    assert len({first, through, own}) == 3
    with (here / "quality.py").open("a") as file:
        file.write("# changed\n")
    assert function_fingerprint("quality:is_good") != first
    assert function_fingerprint("pack.inner:is_good") != through
    assert function_fingerprint("pack.inner:other") == own


def test_the_fingerprint_of_what_has_no_source(here: Path) -> None:
    assert function_fingerprint("builtins:bool") == function_fingerprint("builtins:len")
    assert function_fingerprint("builtins:bool") != function_fingerprint("quality:is_good")
