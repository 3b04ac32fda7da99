"""Facts that ``headrace measure`` keeps, for people: what they are of, and whether they are whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.command import print_json
from headrace.cli.figures import count, listing, plural, size, table

if TYPE_CHECKING:
    from headrace.datasets import MeasuredFacts

MAX_GROUPS = 10


def find_measured(path: str) -> MeasuredFacts | None:
    """The facts in a folder; None where something else is there, or nothing. Raises StoreError: they are damaged."""
    place = Path(path).absolute()
    if not (place / "kept.json").is_file():
        return None
    from headrace.stores import find_arrays

    found = find_arrays(place.parent, place.name)
    if found is None or b"headrace.facts" not in found[1]:
        return None
    from headrace.datasets import MeasuredFacts

    return MeasuredFacts.open(path)


def print_measured(facts: MeasuredFacts, *, as_json: bool, **more: Any) -> None:
    """What ``headrace measure`` and ``headrace info`` say of facts."""
    if as_json:
        import msgspec

        print_json({"path": str(facts.path), **more, "facts": msgspec.to_builtins(facts.summary)})
    else:
        click.echo("\n".join(report(facts)))


def check_kept(path: str, *, quiet: bool, as_json: bool) -> bool | None:
    """Read all bytes of facts, or of a plan or index that was kept, and say what differs from what was written.

    Returns:
        Whether nothing does; None where nothing is kept at the path.
    """
    place = Path(path).absolute()
    if not (place / "kept.json").is_file():
        return None
    from headrace.errors import StoreError
    from headrace.stores import check_arrays

    try:
        faults = check_arrays(place.parent, place.name)
        if not faults:
            find_measured(path)
    except StoreError as error:
        faults = [str(error)]
    if as_json:
        print_json({"path": path, "ok": not faults, "problems": faults})
        return not faults
    for fault in faults:
        click.echo(fault)
    if not quiet and not faults:
        click.echo(f"{path}: whole, {size(_num_bytes(place))}")
    return not faults


def report(facts: MeasuredFacts) -> list[str]:
    """The summary for people."""
    summary = facts.summary
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
    pairs.append(("on disk", size(_num_bytes(facts.path))))
    lines = [str(facts.path), *listing(pairs)]
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


def _num_bytes(place: Path) -> int:
    return sum(file.stat().st_size for file in place.iterdir())
