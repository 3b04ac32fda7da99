"""Compressed tars are no stores: they have no sample by number. Whoever brings one is told how to make one of it."""

from __future__ import annotations

from typing import Final

from headrace.errors import InputError

_KINDS: Final = {
    "gzip": (b"\x1f\x8b", (".tar.gz", ".tgz"), "gzip -dc"),
    "zstd": (b"\x28\xb5\x2f\xfd", (".tar.zst", ".tzst"), "zstd -dc"),
    "bzip2": (b"BZh", (".tar.bz2", ".tbz2", ".tbz"), "bzip2 -dc"),
    "xz": (b"\xfd7zXZ\0", (".tar.xz", ".txz"), "xz -dc"),
    "lz4": (b"\x04\x22\x4d\x18", (".tar.lz4",), "lz4 -dc"),
}
SUFFIXES: Final = tuple(suffix for _, suffixes, _ in _KINDS.values() for suffix in suffixes)


def check_uncompressed(path: str, head: bytes = b"") -> None:
    """Raise InputError for a tar that is compressed, by its name, or by its first bytes; says how to unpack it."""
    for kind, (magic, suffixes, command) in _KINDS.items():
        named = next((suffix for suffix in suffixes if path.endswith(suffix)), None)
        if named is None and not (head and head.startswith(magic)):
            continue
        stem = path.removesuffix(named) if named else path.removesuffix(".tar") + "-plain"
        raise InputError(
            f"{path}: compressed with {kind}; a sample can be reached by its number only in a plain tar:"
            f" {command} {path} > {stem}.tar"
        )
