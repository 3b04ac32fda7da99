"""What ``headrace measure`` and plans of packs keep in folders: facts, and whether a folder is whole."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.datasets import MeasuredFacts
from headrace.datasets.measuring import Summary
from headrace.errors import StoreError
from headrace.inspect.answers import Answer
from headrace.inspect.figures import count, listing, plural, size, table
from headrace.stores import check_arrays, find_arrays


class MeasuredDescription(Answer, frozen=True, kw_only=True):
    """The facts that a measuring found."""

    path: str
    were_there: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the facts were there before ``headrace measure`` ran; unset in other answers."""

    facts: Summary

    @property
    def num_bytes(self) -> int:
        """The size of the folder as it is now."""
        return bytes_in(self.path)

    def lines(self) -> list[str]:
        """Return the lines that ``headrace info`` prints."""
        return _facts_lines(self)


class KeptVerdict(Answer, frozen=True, kw_only=True):
    """What a check of a folder of kept arrays found."""

    path: str
    ok: bool
    problems: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """The size of the folder as it is now."""
        return bytes_in(self.path)

    def lines(self) -> list[str]:
        """Return the line that sums the check up, as ``headrace check`` prints it."""
        return [f"{self.path}: whole, {size(self.num_bytes)}"] if self.ok else []

    def fault_lines(self) -> list[str]:
        """Return a line for each fault."""
        return list(self.problems)


def bytes_in(folder: str) -> int:
    """Return the bytes of all files of a folder."""
    return sum(file.stat().st_size for file in Path(folder).iterdir())


def describe_facts(path: str) -> MeasuredDescription | None:
    """Open the facts in a folder of kept arrays; None if it holds none, but a plan of packs, say.

    Raises:
        StoreError: the arrays are damaged.
    """
    place = Path(path).absolute()
    found = find_arrays(place.parent, place.name)
    if found is None or b"headrace.facts" not in found[1]:
        return None
    facts = MeasuredFacts.open(path)
    return MeasuredDescription(path=str(facts.path), facts=facts.summary)


def check_kept(path: str) -> KeptVerdict:
    """Read all bytes of a folder of kept arrays, and collect every difference from what was written."""
    place = Path(path).absolute()
    try:
        faults = list(map(str, check_arrays(place.parent, place.name)))
        if not faults:
            describe_facts(path)
    except StoreError as error:
        faults = [str(error)]
    return KeptVerdict(path=path, ok=not faults, problems=tuple(faults))


MAX_GROUPS = 10


def _facts_lines(found: MeasuredDescription) -> list[str]:
    """Return the report of facts."""
    summary = found.facts
    encoder = summary.encoder
    version = f" version {encoder['version']}" if encoder.get("version") else ""
    pairs = [
        ("encoder", f"{encoder['encoder']}{version}"),
        ("samples", count(summary.samples)),
        ("bad", count(summary.bad_samples)),
        ("without outputs", count(summary.skipped_samples)),
        ("outputs", count(summary.outputs)),
    ]
    if summary.tokens is not None:
        mean = summary.tokens / max(1, summary.outputs)
        pairs.append(("tokens", f"{count(summary.tokens)}, {mean:,.1f} an output"))
    if summary.groups:
        pairs.append(("groups", count(len(summary.groups))))
    pairs.append(("on disk", size(found.num_bytes)))
    lines = [found.path, *listing(pairs)]
    if summary.faults:
        rows = [("bad", "hook", "kind"), *((count(one.count), one.hook, one.kind) for one in summary.faults)]
        lines += ["", *table(rows)]
    if summary.groups:
        largest = sorted(summary.groups, key=lambda group: -group.outputs)[:MAX_GROUPS]
        rows = [("outputs", "batches of", "group")]
        rows += [(count(one.outputs), "-" if one.size is None else count(one.size), one.key) for one in largest]
        lines += ["", *table(rows)]
        if len(summary.groups) > MAX_GROUPS:
            lines.append(f"  and {plural(len(summary.groups) - MAX_GROUPS, 'group')} more (--json lists all)")
    return lines
