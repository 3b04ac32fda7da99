"""What a user names is found alike on disk and in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import StoreError
from headrace.io import path_at
from headrace.io.finding import each, expand, names_below, open_found, reader_among, real_name, status_of
from memory_stores import MemoryBucket

NAMES = ("a-10.txt", "a-9.txt", "b.txt", ".hidden.txt", "sub/c.txt", "sub/deep/d.txt", ".dark/e.txt", "x{1,2}[3].txt")


@pytest.fixture(params=["disk", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path, bucket: MemoryBucket) -> str:
    """A folder with these files, or the URL of one."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return str(tmp_path) if request.param == "disk" else bucket.upload(tmp_path, "data")


def expanded(root: str, name: str) -> list[tuple[str, list[str]]]:
    found = expand(f"{root}/{name}", reader_among([root], None))
    return [(name.removeprefix(f"{root}/"), [one.removeprefix(f"{root}/") for one in some]) for name, some in found]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("b.txt", [("b.txt", ["b.txt"])]),
        ("sub", [("sub", ["sub"])]),
        ("gone.txt", [("gone.txt", [])]),
        ("a-*.txt", [("a-*.txt", ["a-9.txt", "a-10.txt"])]),
        ("gone*", [("gone*", [])]),
        ("{b,gone}.txt", [("b.txt", ["b.txt"]), ("gone.txt", [])]),
        (
            "{sub/*,a-{9..10}}.txt",
            [("sub/*.txt", ["sub/c.txt"]), ("a-9.txt", ["a-9.txt"]), ("a-10.txt", ["a-10.txt"])],
        ),
        ("{a-?,b}*.txt", [("a-?*.txt", ["a-9.txt", "a-10.txt"]), ("b*.txt", ["b.txt"])]),
        ("x{1,2}[3].txt", [("x{1,2}[3].txt", ["x{1,2}[3].txt"])]),
        ("*/[cd].txt", [("*/[cd].txt", ["sub/c.txt"])]),
        ("sub/**", [("sub/**", ["sub/c.txt", "sub/deep/d.txt"])]),
        ("**/e.txt", [("**/e.txt", [])]),
    ],
)
def test_names_are_expanded(root: str, name: str, wanted: list[tuple[str, list[str]]]) -> None:
    assert expanded(root, name) == wanted


def test_the_names_below_a_folder(root: str) -> None:
    found = sorted(names_below(path_at(root, reader_among([root], None))))
    assert found == ["a-10.txt", "a-9.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt", "x{1,2}[3].txt"]


def test_a_file_is_opened_as_it_was_found(root: str) -> None:
    path = path_at(root, reader_among([root], None)) / "sub/c.txt"
    found = status_of(path)
    assert found.size == 9
    assert bool(found.etag) != bool(found.modified_ns)
    with open_found(str(path), found, None) as file:
        assert file.read(100) == b"sub/c.txt"


def test_a_file_has_one_real_name(root: str, tmp_path: Path) -> None:
    assert real_name(f"{root}/sub//./c.txt") == real_name(f"{root}/sub/c.txt")
    (tmp_path / "link").symlink_to(tmp_path / "sub")
    assert real_name(tmp_path / "link/c.txt") == real_name(tmp_path / "sub/c.txt")


def test_the_first_error_is_raised(root: str) -> None:
    def fail(number: int) -> int:
        if number in (3, 5):
            raise StoreError(str(number))
        return -number

    assert list(each(fail, [0, 1, 2], [root])) == [0, -1, -2]
    with pytest.raises(StoreError, match="3"):
        list(each(fail, range(9), [root]))
