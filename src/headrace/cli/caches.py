"""``headrace cache``: the cache of blocks of a node; ``export-cache``: Megatron's index caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import headrace
from headrace import tracing
from headrace.cli.command import FAULTY, Command, json_option, print_found, print_json
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, listing, plural, size, table

if TYPE_CHECKING:
    from headrace.datasets import FixedDataset
    from headrace.tracing import ReadingPlan

PARTS = ("train", "valid", "test")
SEED = 1234
SPLIT = "969, 30, 1"


@click.command(cls=Command, name="export-cache", short_help="Write the index caches that Megatron looks for.")
@click.argument("data", metavar="DATA...", nargs=-1, required=True)
@click.option(
    "--num-samples",
    metavar="N,N,N",
    required=True,
    help="Samples of train, valid and test; 'all' is one epoch, '-' is no cache.",
)
@click.option("--sequence-length", metavar="S", type=int, help="Number of tokens in a sample.")
@click.option("--seed", metavar="N", type=int, help=f"Megatron's --seed (default: {SEED}).")
@click.option("--split", metavar="TEXT", help=f"Megatron's --split, character for character (default: {SPLIT!r}).")
@click.option("--data-of", type=click.Choice(PARTS), help="DATA are only for this part (--train-data-path, ...).")
@click.option(
    "--tokenizer-identifiers",
    "tokenizer",
    metavar="FILE",
    help="JSON file with the unique_identifiers of Megatron's tokenizer.",
)
@click.option("--like", metavar="FILE", help="A description.txt that Megatron wrote; other options are read from it.")
@click.option("--path-to-cache", metavar="DIR", help="Megatron's --data-cache-path (default: beside the data).")
@click.option("--no-extra-token", is_flag=True, help="As with add_extra_token_to_sequence=False.")
@click.option("--keep-partial-validation", is_flag=True, help="As with drop_last_partial_validation_sequence=False.")
@click.option("--class-name", metavar="NAME", help="Megatron's class (default: GPTDataset).")
@click.option(
    "--era",
    metavar="NAME",
    help="How caches are named: core (megatron-core since 0.7), core_v0.5 or core_v0.4 (default: core).",
)
@click.option(
    "--blend-era",
    metavar="NAME",
    help="How samples of a blend are counted: core (since 0.11) or before_2025_02 (default: that of --era).",
)
@click.option("--replace", is_flag=True, help="Replace a different cache of the same name.")
@json_option
def export_cache(
    data: tuple[str, ...],
    num_samples: str,
    data_of: str | None,
    path_to_cache: str | None,
    no_extra_token: bool,
    keep_partial_validation: bool,
    replace: bool,
    as_json: bool,
    **named: Any,
) -> None:
    """Write Megatron's index caches for DATA, so that it starts without building them.

    DATA are prefixes, or weights and prefixes, exactly as in Megatron's --data-path: the names of the caches depend on
    the paths. A cache that exists already with the same bytes is left as it is.
    """
    wanted = numbers(num_samples, data_of)
    from headrace.compat.megatron.caches import cache_options

    chosen = {name: value for name, value in named.items() if value is not None}
    if "tokenizer" in chosen:
        chosen["tokenizer"] = _identifiers(chosen["tokenizer"])
    like = chosen.pop("like", None)
    options = cache_options(chosen, like=like, data_of=data_of)
    flags = {
        # Megatron-core before 0.7 blends a single prefix with a weight, even in the list of one part.
        "one_part": data_of is not None and options["era"] == "core",
        "add_extra_token_to_sequence": not no_extra_token,
        "drop_last_partial_validation_sequence": not keep_partial_validation,
    }

    made = []
    with ProgressBar(quiet=as_json) as bar:
        for part, number in wanted.items():
            blend = _blend(data, part, number, {**options, **flags}, bar)
            made += headrace.compat.megatron.export_cache(
                blend,
                tokenizer=options["tokenizer"],
                path_to_cache=path_to_cache,
                one_part=data_of is not None,
                class_name=options["class_name"],
                era=options["era"],
                replace=replace,
            )
    if as_json:
        print_json({"caches": made})
        return
    for each in made:
        state = "written" if each.written else "exists already"
        click.echo(f"{each.description}: {state}: {each.part} of {each.of}, {plural(each.samples, 'sample')}")


def numbers(text: str, data_of: str | None) -> dict[str, int | None]:
    """Parse the number of samples of each part, None for one epoch: ``"1000,100"``, ``"-,100"``, ``"all"``.

    Raises:
        ConfigError: the text has another form, or more parts than there are.
    """
    words = [word.strip() for word in text.split(",")]
    parts = PARTS if data_of is None else (data_of,)
    known = all(word in ("-", "all") or (word.isascii() and word.isdecimal()) for word in words)
    if len(words) > len(parts) or not known or set(words) == {"-"}:
        allowed = "one to three, of train, valid and test" if data_of is None else f"one, of {data_of}"
        raise ConfigError(f"--num-samples {text}: give {allowed}: a number, all for one epoch, or - for no cache")
    pairs = zip(parts, words, strict=False)
    return {part: None if word == "all" else int(word) for part, word in pairs if word != "-"}


def _identifiers(path: str) -> dict[str, Any]:
    from headrace.io import read_small

    try:
        found = json.loads(read_small(Path(path)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"{path}: holds {found!r}; expected the JSON object of Megatron's tokenizer.unique_identifiers"
        )
    return found


def _blend(
    data: tuple[str, ...], part: Any, num_samples: int | None, options: dict[str, Any], bar: ProgressBar
) -> FixedDataset:
    def build(prefix: str, wanted: int | None) -> FixedDataset:
        bar.update("making caches", text=f"{part} of {prefix}")
        return headrace.compat.megatron.GPTDataset(
            prefix,
            sequence_length=options["sequence_length"],
            num_samples=wanted,
            seed=options["seed"],
            split=options["split"],
            split_part=part,
            add_extra_token_to_sequence=options["add_extra_token_to_sequence"],
            drop_last_partial_validation_sequence=options["drop_last_partial_validation_sequence"],
        )

    return headrace.compat.megatron.GPTBlend.of(
        list(data), num_samples=num_samples, build=build, one_part=options["one_part"], era=options["blend_era"]
    )


@click.group(name="cache", short_help="Plan, check and clear the block cache of a node.")
def cache() -> None:
    """Plan the cache that keeps blocks of remote data on the disk of a node, or look after it.

    All commands have --json.
    """


@cache.command(cls=Command, name="plan", short_help="What a run reads, and what caches would save.")
@click.argument("path", metavar="FILE")
@click.option("--limit", metavar="BYTES", required=True, help="Size of the cache of a node, as 2TB.")
@click.option("--nodes", metavar="N", type=int, default=1, show_default=True, help="Number of nodes.")
@click.option("--steps", metavar="A:B", help="Only the steps A to B - 1 (default: the whole run).")
@click.option("--block", metavar="BYTES", help="Size of a block (default: 8MiB).")
@json_option
def plan(path: str, limit: str, nodes: int, steps: str | None, block: str | None, as_json: bool) -> None:
    """Say what the last run in FILE reads from its stores, and what caches of this size save, before it begins.

    FILE is what save_run wrote. Each node takes an equal part of every step, and has a cache of its own that keeps the
    first blocks that come. Only indexes are read, no data. If the steps have more than a million samples, some steps
    are counted, spread evenly, and their numbers are scaled up.
    """
    given: dict[str, Any] = {} if block is None else {"block": block}
    found = tracing.reading_plan(
        path, limit=limit, nodes=nodes, steps=None if steps is None else _steps(steps), **given
    )
    print_found(found, plan_lines(found), as_json=as_json)


@cache.command(cls=Command, name="info", short_help="What is in the folder of a cache.")
@click.argument("folder", metavar="DIR")
@json_option
def info(folder: str, as_json: bool) -> None:
    """Say how many blocks the cache in DIR holds, and how many other processes read through it now."""
    found = headrace.cache.describe_cache(folder)
    pairs = [
        (
            "holds",
            f"{plural(found.blocks, 'block')}, {size(found.num_bytes)}, of {size(found.block_bytes)} each at most",
        ),
        ("now", f"{plural(found.readers, 'reader')}, {plural(found.fetching, 'block')} being fetched"),
    ]
    print_found(found, [f"{folder}: a cache of blocks", *listing(pairs)], as_json=as_json)


@cache.command(cls=Command, name="verify", short_help="Read every block, and remove damaged ones.")
@click.argument("folder", metavar="DIR")
@json_option
@click.pass_context
def verify(ctx: click.Context, /, folder: str, as_json: bool) -> None:
    """Read every block of the cache in DIR, compare it with its checksum, and remove what is damaged or left over.

    Exit code 0: all is well; 1: something was wrong, and is removed, so that it is fetched again.
    """
    found = headrace.cache.check_cache(folder)
    told = plural(len(found), "fault") if found else "all blocks are right"
    print_found({"cache": folder, "ok": not found, "removed": found}, [*found, f"{folder}: {told}"], as_json=as_json)
    if found:
        ctx.exit(FAULTY)


@cache.command(cls=Command, name="clear", short_help="Remove all blocks.")
@click.argument("folder", metavar="DIR")
@json_option
def clear(folder: str, as_json: bool) -> None:
    """Remove all blocks of the cache in DIR, except those that are being fetched now. Nothing else is removed."""
    number = headrace.cache.clear_cache(folder)
    report = [f"{folder}: {plural(number, 'block')} removed"]
    print_found({"cache": folder, "removed": number}, report, as_json=as_json)


def plan_lines(found: ReadingPlan) -> list[str]:
    """Return the report of a plan."""
    ratio = found.read_bytes / max(1, found.stored_bytes)
    steps = found.end_step - found.first_step
    blocks = f"{plural(found.stored_blocks, 'block')} of {size(found.block_bytes)}"
    lines = [
        f"{found.run}: steps {count(found.first_step)} to {count(found.end_step - 1)} on {plural(found.nodes, 'node')}",
        f"  data    {plural(found.stored_files, 'file')}, {size(found.stored_bytes)}, {blocks}",
        f"  reads   {plural(found.reads, 'block')} in some step",
        f"  used    {size(found.read_bytes)} of them, {ratio:.2f} times the data",
        f"  caches  {size(found.limit_bytes)} a node, {size(found.limit_bytes * found.nodes)} in all",
    ]
    if found.counted_steps < steps:
        lines.append(f"  counted {count(found.counted_steps)} of the {count(steps)} steps, and scaled up")
    rows = [["samples", "blocks of a node", "kept", "GETs", "fetched", "of what is used"]]
    dealt = [] if found.dealt is None else [(f"dealt, {found.foreign:.1%} foreign", found.dealt)]
    for name, cache in [("in order", found.cache), *dealt]:
        share = cache.fetched_bytes / max(1, found.read_bytes)
        kept = f"{count(cache.kept_blocks)}, {cache.kept_blocks / max(1, cache.blocks):.1%}"
        rows.append([name, count(cache.blocks), kept, count(cache.gets), size(cache.fetched_bytes), f"{share:.2f}"])
    return [*lines, "", *table(rows), *found.notes]


def _steps(text: str) -> tuple[int, int]:
    first, sign, last = text.partition(":")
    try:
        if not sign:
            raise ValueError(text)
        return int(first), int(last)
    except ValueError:
        raise ConfigError(f"--steps {text}: write A:B, the first step and the one behind the last") from None
