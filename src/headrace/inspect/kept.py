"""What ``headrace measure`` and plans of packs keep in folders: facts, and whether a folder is whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.datasets import MeasuredFacts
from headrace.datasets.measuring import Summary
from headrace.errors import StoreError
from headrace.inspect.answers import Checked, Report, bytes_of, problem_of
from headrace.inspect.blocks import Block, Pairs, Tabular, Title, Titled
from headrace.inspect.figures import count, plural, size
from headrace.stores import check_arrays, find_arrays


class MeasuredDescription(Report, frozen=True, kw_only=True):
    """The facts that a measuring found."""

    path: str
    were_there: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the facts were there before ``headrace measure`` ran; unset in other answers."""

    facts: Summary

    def shown(self) -> Iterator[Block]:
        """Yield what is shown, as blocks."""
        summary = self.facts
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
        yield Title(self.path)
        yield Pairs([*pairs, ("on disk", size(bytes_of(Path(self.path).iterdir())))])
        if summary.faults:
            rows = [(count(one.count), one.hook, one.kind) for one in summary.faults]
            yield Titled("faults", [Tabular(("bad", "hook", "kind"), rows, (1, 2))])
        if summary.groups:
            largest = sorted(summary.groups, key=lambda group: -group.outputs)[:MAX_GROUPS]
            rows = [(count(one.outputs), "-" if one.size is None else count(one.size), one.key) for one in largest]
            more = len(summary.groups) - MAX_GROUPS
            rest = [f"and {plural(more, 'group')} more (--json lists all)"] if more > 0 else []
            yield Titled("groups", [Tabular(("outputs", "batches of", "group"), rows, (2,)), *rest])


class KeptVerdict(Checked, frozen=True, kw_only=True):
    """What a check of a folder of kept arrays found."""

    def shown(self) -> list[Block]:
        """Return what is shown, as blocks."""
        return [self.told(size(bytes_of(Path(self.path).iterdir())))]


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
        faults = list(check_arrays(place.parent, place.name))
        if not faults:
            describe_facts(path)
    except StoreError as error:
        faults = [problem_of(error, path)]
    return KeptVerdict(path=path, ok=not faults, problems=tuple(faults))


MAX_GROUPS = 10
