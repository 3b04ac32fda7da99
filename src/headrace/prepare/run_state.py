"""What a run must know to go on after a kill, and whether an unfinished run is the one that is asked for now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import xxhash

from headrace.errors import OutputError
from headrace.io import atomic_write
from headrace.prepare.ledger import LedgerState
from headrace.prepare.messages import Cursor
from headrace.prepare.store_output import OutputState
from headrace.stores import ProvenanceState

STATE_NAME = "state"
TASK_NAME = "state.task"
"""The checkpoint at the begin of the last task that left several pieces, to go back to."""


class RunState(msgspec.Struct, kw_only=True):
    """A checkpoint: all before it is on disk in the output, all after it is done again or lies in pieces."""

    phase: Literal["encode", "sort"] = "encode"
    turn: int = 0
    """The task, or the bucket, that comes next."""
    cursor: Cursor = Cursor()
    """Where in that task."""
    ledger: LedgerState
    output: OutputState = OutputState()
    provenance: ProvenanceState | None = None
    num_buckets: int = 0
    bucket_sizes: list[int] = []
    seen: int = 0
    """Bytes of the file of text hashes."""
    domains: list[str] = []
    """Names of the domains, in the order in which the input first has them."""
    kept_records: int = 0
    """Counted where the recipe limits them."""
    fallback: str = ""
    """Why everything from some task on is encoded by ``tokenizers``; empty while the fast tokeniser holds."""


def save_state(work: Path, state: RunState, name: str = STATE_NAME) -> None:
    """Write the checkpoint and its hash, atomically.

    Raises:
        OutputError: the system refuses.
    """
    data = msgspec.msgpack.encode(state)
    atomic_write(work / name, data + xxhash.xxh3_64_digest(data))


def load_state(work: Path, name: str = STATE_NAME) -> RunState | None:
    """The checkpoint of a run, or None where it had made none.

    Raises:
        OutputError: it cannot be read, or a bit of it was changed.
    """
    try:
        data = (work / name).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"{work / name}: cannot be read: {error.strerror or error}") from error
    try:
        if xxhash.xxh3_64_digest(data[:-8]) != data[-8:]:
            raise msgspec.DecodeError("its hash is not that of its content")
        return msgspec.msgpack.decode(data[:-8], type=RunState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OutputError(
            f"{work / name}: damaged, or of another version of Headrace ({error}); --restart begins anew"
        ) from error


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs between two descriptions of a run, a line each, and first where lists have other lengths."""
    before, after = dict(_flat(then, "")), dict(_flat(now, ""))
    for name in sorted(before.keys() | after.keys(), key=lambda name: (not name.startswith("number of "), name)):
        if name not in before or name not in after or before[name] != after[name]:
            yield f"{name} was {_shown(before, name)}, is {_shown(after, name)}"


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        yield f"number of {path}", len(value)
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{number}]")
    else:
        yield path, value


def _shown(values: Mapping[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "not there"
