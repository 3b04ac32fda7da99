"""``headrace info``: say what a store or a metadataset holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from headrace.cli.command import Command, config_options, dialect_options, json_option, print_json, print_report
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, listing, plural, short, size, table

if TYPE_CHECKING:
    from headrace.inspect.description import Description, KeyDescription, PackFigures
    from headrace.inspect.metadataset import MetadatasetNumbers, NodeNumbers
    from headrace.inspect.sample_description import SampleDescription
    from headrace.stores import Dialect, Documents, IndexedOptions

MAX_INPUTS = 10


@click.command(cls=Command, name="info", short_help="Say what a store holds.")
@click.argument("path", metavar="PATH")
@click.option(
    "--pack",
    "pack",
    metavar="N",
    type=int,
    multiple=True,
    help="Show what each strategy makes of packs of N tokens; repeatable.",
)
@click.option(
    "--key", metavar="NAME", help="With --pack: the key to pack, if the store has several (default: the first)."
)
@config_options
@click.option(
    "--steps", metavar="N", type=int, help="For metadatasets: show how often each source was seen after N steps."
)
@click.option("--global-batch-size", metavar="B", type=int, help="For metadatasets: number of samples per step.")
@dialect_options
@json_option
def command(
    path: str, pack: tuple[int, ...], key: str | None, split_config: str | None, dataset_config: str | None,
    steps: int | None, global_batch_size: int | None, dialect: Dialect | None, documents: Documents, as_json: bool,
) -> None:  # fmt: skip
    """Say what the store at PATH holds: format, documents, tokens, lengths, tokeniser, inputs.

    PATH is a folder, a prefix with or without .bin or .idx, or a meta.json. The command reads the lengths of all
    documents, but not their tokens. With --pack it shows instead what each packing strategy would make of the
    documents: packs, fill, documents per pack, and how much is cut and lost.

    For tar shards, Energon datasets and other samples with named parts it shows samples, shards, parts, splits and
    types. For a metadataset (.yaml) it shows the tree of each split with weights, shares and samples, and with --steps
    also epochs.
    """

    from headrace.stores import IndexedOptions

    if path.endswith(".yaml") and not pack:
        print_metadataset(path, steps=steps, global_batch_size=global_batch_size, as_json=as_json)
        return
    from headrace.cli.measure import find_measured, print_measured

    facts = find_measured(path)
    if facts is not None:
        print_measured(facts, as_json=as_json)
        return
    if steps is not None or global_batch_size is not None:
        raise ConfigError(
            f"--steps and --global-batch-size are for metadatasets, whose names end in .yaml; found {path}"
        )
    options = IndexedOptions(dialect=dialect, documents=documents)
    if pack:
        figures = _pack_figures(path, pack, key, options)
        if as_json:
            print_json(figures)
        else:
            from headrace.inspect.description import pack_report

            print_report(pack_report(figures))
        return
    if key is not None:
        raise ConfigError(f"--key {key} needs --pack N: add it, or leave --key out")

    from headrace.inspect.sample_description import describe_samples
    from headrace.inspect.samples import SampleOptions

    samples = describe_samples(path, SampleOptions(split_config=split_config, dataset_config=dataset_config))
    if samples is not None:
        _print_samples(samples, as_json=as_json)
        return

    from headrace.inspect.description import describe

    description = describe(path, options)
    if as_json:
        print_json(description)
    else:
        print_report(report(description))


def _print_samples(found: SampleDescription, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    from headrace.inspect.sample_lines import description_lines

    print_report(description_lines(found))


def _pack_figures(path: str, seq_lens: tuple[int, ...], key: str | None, options: IndexedOptions) -> PackFigures:
    from headrace.inspect.description import pack_figures

    with ProgressBar(quiet=False) as bar:

        def show(seq_len: int, done: int, num_documents: int) -> None:
            text = f"{count(done)} of {count(num_documents)} documents"
            bar.update(f"packs of {count(seq_len)}", done, num_documents, text=text)

        return pack_figures(path, seq_lens, key=key, on_documents=show, options=options)


def report(description: Description) -> list[str]:
    """Return the report of a store."""
    keys = description.keys
    has_one = len(keys) == 1
    kind = keys[0].dtype if has_one else f"{len(keys)} keys"
    empty = _empty(keys[0].empty_documents) if has_one else ""
    pairs = [
        ("format", f"{description.format}, {kind}, {plural(description.shards, 'shard')}"),
        ("documents", count(description.documents) + empty),
        ("tokens", count(description.tokens)),
        ("on disk", size(description.bytes)),
    ]
    if has_one:
        pairs += _per_document(keys[0])
    lines = [description.path, *listing(pairs + _made_by(description))]
    for key in keys:
        if not has_one:
            pairs = [
                ("documents", count(key.documents) + _empty(key.empty_documents)),
                ("tokens", count(key.tokens)),
                *_per_document(key),
                *_supervised(key),
            ]
            lines += ["", f"key {key.name!r} ({key.dtype})", *listing(pairs)]
        lines += _lengths(key)
    if description.inputs is not None:
        lines += ["", f"inputs ({len(description.inputs):,})"]
        lines += [f"  {size(file.size):>8}  {file.path}" for file in description.inputs[:MAX_INPUTS]]
        if len(description.inputs) > MAX_INPUTS:
            lines.append(f"  and {len(description.inputs) - MAX_INPUTS:,} more (--json lists all)")
    return lines


def _per_document(key: KeyDescription) -> list[tuple[str, str]]:
    lengths = key.tokens_per_document
    if lengths is None:
        return []
    middle = f"median {lengths.median:,.0f}, mean {lengths.mean:,.1f}"
    return [("per document", f"min {count(lengths.min)}, {middle}, max {count(lengths.max)} tokens")]


def _supervised(key: KeyDescription) -> list[tuple[str, str]]:
    found = key.supervised
    if found is None or not found.tokens:
        return []
    looked_at = "" if found.is_all else f", from a sample of {count(found.tokens)}"
    about = "" if found.is_all else "about "
    return [("supervised", f"{about}{found.trained / found.tokens:.1%} of the tokens, by {found.mask!r}{looked_at}")]


def _made_by(description: Description) -> list[tuple[str, str]]:
    """What the manifest records about how the store was made."""
    pairs = []
    tokenizer, backend, order = description.tokenizer, description.backend, description.order
    if tokenizer is not None:
        eod = "none appended" if tokenizer.eod is None else str(tokenizer.eod)
        bos = "" if tokenizer.bos is None else f", begin of document {tokenizer.bos}"
        vocabulary = f"vocabulary {count(tokenizer.vocab_size)}, end of document {eod}{bos}"
        pairs.append(("tokeniser", f"{tokenizer.source}, {vocabulary}, xxh3 {tokenizer.xxh3_128}"))
    if backend is not None:
        proved = ", ".join(f"{count(number)} {what.replace('_', ' ')}" for what, number in backend.proved.items())
        until = f", then tokenizers: {backend.from_task_by}" if backend.from_task_by else ""
        proof = f", proved on {proved}" if proved else ""
        pairs.append(("encoded by", f"{backend.name} {backend.version}{proof}{until}"))
    if order is not None:
        seed = getattr(order, "seed", None)
        pairs.append(("order", "that of the inputs" if seed is None else f"shuffled with seed {seed}"))
    if description.errors:
        pairs.append(("skipped", f"{plural(description.errors, 'record')} (headrace.json lists them)"))
    return pairs


def _lengths(key: KeyDescription) -> list[str]:
    if not key.histogram:
        return []
    rows = [("tokens", "documents", "share", "of tokens")]
    for bar in key.histogram:
        span = count(bar.first) if bar.first == bar.last else f"{count(bar.first)} to {count(bar.last)}"
        document_share = bar.documents / key.documents
        token_share = bar.tokens / max(key.tokens, 1)
        rows.append((span, count(bar.documents), f"{document_share:.1%}", f"{token_share:.1%}"))
    return ["", "lengths", *table(rows)]


def _empty(number: int) -> str:
    return f", {count(number)} of them empty" if number else ""


Row = tuple[str, ...]


def print_metadataset(path: str, *, steps: int | None, global_batch_size: int | None, as_json: bool) -> None:
    """Print the report of a metadataset; raises what `metadataset_numbers` raises."""
    from headrace.inspect.metadataset import metadataset_numbers

    numbers = metadataset_numbers(path, steps=steps, global_batch_size=global_batch_size)
    if as_json:
        print_json(numbers)
    else:
        print_report(metadataset_report(numbers))


def metadataset_report(numbers: MetadatasetNumbers) -> list[str]:
    """Return the report of a metadataset."""
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
    """Move the weight of a child of a ``blend_epochized`` to the column of repetitions, which it is."""
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
    """Align the first and the last column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0], cells[-1] = row[0].ljust(widths[0]), row[-1]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines
