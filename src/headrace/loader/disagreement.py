"""What is said of processes that would feed other samples than each other. Imported when some do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from headrace.errors import StateError
from headrace.loader.ranks import ASSIGNED, all_gathered_texts
from headrace.plan.recipe import canonical

_MOST_RECIPE_BYTES: Final = 1 << 16
_MOST_LINES: Final = 8


def told(values: Mapping[str, Any]) -> bytes:
    """Return values as JSON; of a large recipe only hashes, since that of each process comes to all of them."""
    text = canonical(values)
    if len(text) <= _MOST_RECIPE_BYTES:
        return text
    hashed = {
        part: {name: sha256(canonical(one)).hexdigest()[:32] for name, one in fields.items()}
        for part, fields in values["recipe"].items()
    }
    return canonical({**values, "recipe": hashed})


def disagreement(values: Mapping[str, Any]) -> StateError:
    """Return the error that names each field in which processes differ, with its values.

    Every process of the job has to call it with its own values; it takes two all-gathers.
    """
    lines = list(_differences([msgspec.json.decode(one) for one in all_gathered_texts(told(values))]))
    lines = [one for one in lines if not one.startswith(ASSIGNED)] or lines
    more = [f"and {len(lines) - _MOST_LINES:,} more"] if len(lines) > _MOST_LINES else []
    listed = "\n  ".join(lines[:_MOST_LINES] + more)
    return StateError(
        f"the processes disagree on what is fed, so that samples would come twice or never:\n  {listed}\n"
        "The numbers in brackets are processes, as in torch.distributed. Every process must build the same run over"
        " the same files, pass its loader the same options, and load the same state. If the file of the run was"
        " edited while the job was starting, start the job again."
    )


def _differences(values: Sequence[Any], name: str = "") -> Iterator[str]:
    """Yield a line for each field that differs between processes: its name, and each value with its processes."""
    if all(isinstance(one, dict) for one in values):
        for key in dict.fromkeys(key for one in values for key in one):
            yield from _differences([one.get(key, "not set") for one in values], f"{name}.{key}" if name else key)
        return
    found: dict[bytes, list[int]] = {}
    for process, value in enumerate(values):
        found.setdefault(canonical(value), []).append(process)
    if len(found) > 1:
        yield f"{name}: " + "; ".join(f"{_cut(text.decode(), 80)} in {_cut(str(at), 40)}" for text, at in found.items())


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
