"""``headrace cache``: the cache of blocks of a node; ``export-cache``: Megatron's index caches."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import headrace
from headrace import inspect, tracing
from headrace.cli.command import Found, command, group
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, plural, size

Part = Literal["train", "valid", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
NAMES = ("sequence_length", "class_name", "era", "blend_era")
BORDERS = ("add_extra_token_to_sequence", "drop_last_partial_validation_sequence")
"""What ``--set`` sets for `export_cache`."""


@command("export-cache", "Write the index caches that Megatron looks for.")
def export_cache(
    data: Annotated[tuple[str, ...], "DATA..."],
    *,
    samples: Annotated[str, "N,N,N"],
    arguments: dict[str, Any] | None = None,
    seed: int | None = None,
    split: Annotated[str | None, "SHARES"] = None,
    split_part: Part | None = None,
    tokenizer: Annotated[str | None, "FILE"] = None,
    like: Annotated[str | None, "FILE"] = None,
    output: Annotated[str | None, "DIR"] = None,
    overwrite: bool = False,
    as_json: bool = False,
) -> Found:
    """Write Megatron's index caches for DATA, so that it starts without building them.

    DATA are prefixes, or weights and prefixes, exactly as in Megatron's --data-path: the names of the caches depend on
    the paths. A cache that exists already with the same bytes is left as it is.

    Args:
        samples: samples of train, valid and test; 'all' is one epoch, '-' is no cache.
        arguments: what Megatron's configuration says: sequence_length, the number of tokens in a sample; class_name,
            by default GPTDataset; add_extra_token_to_sequence and drop_last_partial_validation_sequence, true or false;
            era, how caches are named: core (megatron-core since 0.7), core_v0.5 or core_v0.4; blend_era, how samples of
            a blend are counted: core (since 0.11) or before_2025_02. May be repeated.
        seed: Megatron's --seed; by default 1234.
        split: Megatron's --split, character for character; by default '969, 30, 1'.
        split_part: DATA are only for this part, as with --train-data-path.
        tokenizer: JSON file with the unique_identifiers of Megatron's tokenizer.
        like: a description.txt that Megatron wrote; other options are read from it.
        output: Megatron's --data-cache-path; by default a folder beside the data.
        overwrite: replace a different cache of the same name.
    """
    from headrace.compat.megatron.caches import cache_options
    from headrace.config import check_keys

    wanted = numbers(samples, split_part)
    identifiers = None if tokenizer is None else _identifiers(tokenizer)
    given = {"seed": seed, "split": split, "tokenizer": identifiers, **(arguments or {})}
    check_keys(given, ("seed", "split", "tokenizer", *NAMES, *BORDERS), "--set ")
    borders = {name: given.pop(name, True) for name in BORDERS}
    chosen = cache_options(
        {name: value for name, value in given.items() if value is not None}, like=like, data_of=split_part
    )

    def build(part: Part, prefix: str, num_samples: int | None) -> headrace.datasets.FixedDataset:
        bar.update("making caches", text=f"{part} of {prefix}")
        return headrace.compat.megatron.GPTDataset(
            prefix,
            sequence_length=chosen["sequence_length"],
            num_samples=num_samples,
            seed=chosen["seed"],
            split=chosen["split"],
            split_part=part,
            **borders,
        )

    # Megatron-core before 0.7 blends a single prefix with a weight, even in the list of one part.
    one_part = split_part is not None and chosen["era"] == "core"
    made = []
    with ProgressBar(quiet=as_json) as bar:
        for part, number in wanted.items():
            blend = headrace.compat.megatron.GPTBlend.of(
                list(data), num_samples=number, build=partial(build, part), one_part=one_part, era=chosen["blend_era"]
            )
            made += headrace.compat.megatron.export_cache(
                blend,
                tokenizer=chosen["tokenizer"],
                path_to_cache=output,
                one_part=split_part is not None,
                class_name=chosen["class_name"],
                era=chosen["era"],
                replace=overwrite,
            )
    states = {True: "written", False: "exists already"}
    report = [
        f"{one.description}: {states[one.written]}: {one.part} of {one.of}, {plural(one.samples, 'sample')}"
        for one in made
    ]
    return Found({"caches": made}, report)


def numbers(text: str, data_of: Part | None) -> dict[Part, int | None]:
    """Parse the number of samples of each part, None for one epoch: ``"1000,100"``, ``"-,100"``, ``"all"``.

    Raises:
        ConfigError: the text has another form, or more parts than there are.
    """
    words = [word.strip() for word in text.split(",")]
    parts = PARTS if data_of is None else (data_of,)
    known = all(word in ("-", "all") or (word.isascii() and word.isdecimal()) for word in words)
    if len(words) > len(parts) or not known or set(words) == {"-"}:
        allowed = "one to three, of train, valid and test" if data_of is None else f"one, of {data_of}"
        raise ConfigError(f"--samples {text}: give {allowed}: a number, all for one epoch, or - for no cache")
    return {part: None if word == "all" else int(word) for part, word in zip(parts, words, strict=False) if word != "-"}


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


@command("plan", "What a run reads, and what caches would save.")
def plan(path: Annotated[str, "FILE"], **given: Annotated[Any, tracing.reading_plan]) -> Found:
    """Say what the last run in FILE reads from its stores, and what caches of this size save, before it begins.

    FILE is what save_run wrote. Each node takes an equal part of every step, and has a cache of its own that keeps the
    first blocks that come. Only indexes are read, no data. If the steps have more than a million samples, some steps
    are counted, spread evenly, and their numbers are scaled up.
    """
    found = tracing.reading_plan(path, **given)
    return Found(found, plan_lines(found))


@command("info", "What is in the folder of a cache.")
def info(folder: Annotated[str, "DIR"]) -> Found:
    """Say how many blocks the cache in DIR holds, and how many other processes read through it now."""
    found = headrace.cache.describe_cache(folder)
    held = f"{plural(found.blocks, 'block')}, {size(found.num_bytes)}, of {size(found.block_bytes)} each at most"
    now = f"{plural(found.readers, 'reader')}, {plural(found.fetching, 'block')} being fetched"
    return Found(found, [f"{folder}: a cache of blocks", inspect.Pairs([("holds", held), ("now", now)])])


@command("verify", "Read every block, and remove damaged ones.")
def verify(folder: Annotated[str, "DIR"]) -> Found:
    """Read every block of the cache in DIR, compare it with its checksum, and remove what is damaged or left over.

    Exit code 0: all is well; 1: something was wrong, and is removed, so that it is fetched again.
    """
    found = headrace.cache.check_cache(folder)
    told = plural(len(found), "fault") if found else "all blocks are right"
    value = {"cache": folder, "ok": not found, "removed": found}
    return Found(value, [*found, f"{folder}: {told}"], is_faulty=bool(found))


@command("clear", "Remove all blocks.")
def clear(folder: Annotated[str, "DIR"]) -> Found:
    """Remove all blocks of the cache in DIR, except those that are being fetched now. Nothing else is removed."""
    number = headrace.cache.clear_cache(folder)
    return Found({"cache": folder, "removed": number}, [f"{folder}: {plural(number, 'block')} removed"])


cache = group(
    "cache",
    "Plan, check and clear the block cache of a node.",
    "Plan the cache that keeps blocks of remote data on the disk of a node, or look after it.\n\n"
    "All commands have --json.",
    *(plan, info, verify, clear),
)


def plan_lines(found: tracing.ReadingPlan) -> list[inspect.Block]:
    """Return the report of a plan."""
    ratio = found.read_bytes / max(1, found.stored_bytes)
    steps = found.end_step - found.first_step
    blocks = f"{plural(found.stored_blocks, 'block')} of {size(found.block_bytes)}"
    title = f"steps {count(found.first_step)} to {count(found.end_step - 1)} on {plural(found.nodes, 'node')}"
    pairs = [
        ("data", f"{plural(found.stored_files, 'file')}, {size(found.stored_bytes)}, {blocks}"),
        ("reads", f"{plural(found.reads, 'block')} in some step"),
        ("used", f"{size(found.read_bytes)} of them, {ratio:.2f} times the data"),
        ("caches", f"{size(found.limit_bytes)} a node, {size(found.limit_bytes * found.nodes)} in all"),
    ]
    if found.counted_steps < steps:
        pairs.append(("counted", f"{count(found.counted_steps)} of the {count(steps)} steps, and scaled up"))
    heads, rows = ("samples", "blocks of a node", "kept", "GETs", "fetched", "of what is used"), []
    dealt = [] if found.dealt is None else [(f"dealt, {found.foreign:.1%} foreign", found.dealt)]
    for name, cache in [("in order", found.cache), *dealt]:
        share = cache.fetched_bytes / max(1, found.read_bytes)
        kept = f"{count(cache.kept_blocks)}, {cache.kept_blocks / max(1, cache.blocks):.1%}"
        rows.append([name, count(cache.blocks), kept, count(cache.gets), size(cache.fetched_bytes), f"{share:.2f}"])
    return [inspect.Title(found.run, title), inspect.Pairs(pairs), "", inspect.Tabular(heads, rows), *found.notes]
