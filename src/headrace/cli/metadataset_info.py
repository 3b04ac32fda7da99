"""``headrace info`` of a metadataset: the tree of each split, with what each source gives."""

from __future__ import annotations

from collections.abc import Iterator

import click
import msgspec

from headrace.cli.command import print_json
from headrace.cli.figures import count, short
from headrace.cli.metadataset_numbers import MetadatasetNumbers, NodeNumbers, metadataset_numbers

Row = tuple[str, ...]


def print_metadataset(path: str, *, steps: int | None, global_batch_size: int | None, as_json: bool) -> None:
    """Print what a metadataset says; raises as `metadataset_numbers`."""
    numbers = metadataset_numbers(path, steps=steps, global_batch_size=global_batch_size)
    if as_json:
        print_json(msgspec.to_builtins(numbers))
    else:
        click.echo("\n".join(report(numbers)))


def report(numbers: MetadatasetNumbers) -> list[str]:
    """The numbers for people."""
    lines = [numbers.path]
    if numbers.steps is not None:
        samples = numbers.steps * (numbers.global_batch_size or 0)
        lines.append(
            f"after {count(numbers.steps)} steps of {count(numbers.global_batch_size or 0)}: {count(samples)} samples"
        )
    for root in numbers.splits.values():
        length = "endless" if root.samples is None else f"{count(root.samples)} samples a pass"
        lines += ["", f"split {root.name}: {root.kind}, {length}"]
        rows = [_heading(numbers), *_rows(root, numbers, "", "", is_root=True)]
        used = [at for at in range(len(rows[0])) if at == 0 or any(row[at] for row in rows[1:])]
        lines += _aligned([tuple(row[at] for at in used) for row in rows])
        lines += _schedules(root, "")
    return lines


def _heading(numbers: MetadatasetNumbers) -> Row:
    seen = ("seen", "epochs") if numbers.steps is not None else ()
    return ("", "weight", "times", "share", "samples", "tokens", *seen, "of")


def _rows(node: NodeNumbers, numbers: MetadatasetNumbers, first: str, rest: str, *, is_root: bool) -> Iterator[Row]:
    yield _row(node, numbers, first, is_root=is_root)
    for at, child in enumerate(node.children):
        last = at + 1 == len(node.children)
        in_epochs = node.kind == "blend_epochized"
        yield from (
            _times(row) if in_epochs and depth == 0 else row
            for depth, row in enumerate(
                _rows(
                    child, numbers, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "), is_root=False
                )
            )
        )


def _row(node: NodeNumbers, numbers: MetadatasetNumbers, first: str, *, is_root: bool) -> Row:
    mixes = bool(node.children)
    samples = "endless" if node.samples is None else count(node.samples)
    if node.limit is not None:
        samples = f"first {samples}"
    seen: Row = ()
    if numbers.steps is not None:
        seen = (_or_nothing(node.seen), "" if node.epochs is None else f"{node.epochs:,.2f}")
    of = node.kind if mixes and not is_root else "" if mixes else _of(node)
    weight = "" if node.number is None else f"{node.number:g}"
    tokens = "" if node.tokens is None else short(node.tokens).strip()
    return (f"{first}{node.name}", weight, "", f"{node.share:.3%}", samples, tokens, *seen, of)


def _times(row: Row) -> Row:
    """Of a child of a blend_epochized: what is written are repetitions."""
    return (row[0], "", row[1], *row[3:])


def _of(node: NodeNumbers) -> str:
    part = "" if node.split_part is None else f" {node.split_part}"
    subset = "" if node.subset is None else f", samples {count(node.subset[0])} to {count(node.subset[1] - 1)}"
    return f"{node.path}{part}{subset}"


def _schedules(node: NodeNumbers, path: str) -> Iterator[str]:
    place = f"{path}/{node.name}" if path else node.name
    for until, weights, ramp in node.schedule:
        shown = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        yield f"  {place}: {'on' if until is None else f'until {until}'}{', moving to' if ramp else ''}: {shown}"
    for child in node.children:
        yield from _schedules(child, place)


def _or_nothing(number: int | None) -> str:
    return "" if number is None else count(number)


def _aligned(rows: list[Row]) -> list[str]:
    """Names and the last column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0], cells[-1] = row[0].ljust(widths[0]), row[-1]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines
