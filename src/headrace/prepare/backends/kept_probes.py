"""What came of a probe, kept in the cache folder: the texts are fixed, so the same libraries need not be asked again.

One small file a library and tokeniser. Its name is a hash of all that decides the outcome: the tokeniser, the policy,
the versions of both libraries, of Python and of Headrace, and the code of this room. A file that is damaged, or is not
what its name says, counts for nothing and is made anew; where nothing can be kept, every run makes its probe.
"""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

import msgspec

from headrace.errors import OutputError
from headrace.io import atomic_write, cache_folder, hash_bytes
from headrace.prepare.backends.backend import SpecialPolicy, installed_version


class Outcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What came of a probe.

    Attributes:
        of: what was probed, see `probe_key`.
        difference: where the two libraries parted; empty: nowhere.
        xxh3_128: of both.
    """

    of: str
    difference: str
    xxh3_128: str


def probe_key(tokenizer_json: bytes, special: SpecialPolicy, name: str, kind: type | object) -> str:
    """A hash of all that decides the outcome of the probe of a library; ``kind`` is what runs it here."""
    code = Path(__file__).parent
    parts = (
        hash_bytes(tokenizer_json),
        special,
        f"{name} {installed_version(name)}",
        f"tokenizers {installed_version('tokenizers')}",
        f"python {platform.python_version()}",
        f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}",
        *(hash_bytes(file.read_bytes()) for file in sorted(code.glob("*.py"))),
    )
    return hash_bytes("\n".join(parts).encode())


def find_outcome(key: str) -> str | None:
    """What came of the probe with this key: a difference, "" for none; None where it is not known."""
    folder = cache_folder("probes")
    if folder is None:
        return None
    try:
        found = msgspec.json.decode((folder / f"{key}.json").read_bytes(), type=Outcome)
    except (OSError, ValueError, RecursionError):
        return None
    return found.difference if found == _outcome(key, found.difference) else None


def keep_outcome(key: str, difference: str) -> None:
    """Keep what came of a probe, where there is a place that can be written."""
    folder = cache_folder("probes")
    if folder is None:
        return
    with contextlib.suppress(OSError, OutputError):
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / f"{key}.json", msgspec.json.encode(_outcome(key, difference)))


def _outcome(key: str, difference: str) -> Outcome:
    return Outcome(of=key, difference=difference, xxh3_128=hash_bytes(f"{key}\n{difference}".encode()))
