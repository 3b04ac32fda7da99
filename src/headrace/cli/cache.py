"""``headrace cache``: what a cache of blocks would save, before a run; and what is in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import headrace
from headrace import tracing
from headrace.cli.command import FAULTY, Command, json_option, print_json, print_report
from headrace.errors import ConfigError
from headrace.inspect.figures import count, listing, plural, size, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.tracing import PlannedCache, ReadingPlan

_SHOWN_EPOCHS = 8


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

    FILE is what save_run wrote. Each node takes an equal part of every step and has a cache of its own. Four policies
    stand side by side: plan keeps what is used next, pin keeps the first blocks that come, lru and fifo are what others
    do. Only indexes are read, no data. If there are more than a million reads, those of a sample of the blocks are
    followed, and the errors of the figures are printed.
    """
    given: dict[str, Any] = {} if block is None else {"block": block}
    found = tracing.reading_plan(
        path, limit=limit, nodes=nodes, steps=None if steps is None else _steps(steps), **given
    )
    if as_json:
        print_json(found)
    else:
        print_report(plan_lines(found))


@cache.command(cls=Command, name="info", short_help="What is in the folder of a cache.")
@click.argument("folder", metavar="DIR")
@json_option
def info(folder: str, as_json: bool) -> None:
    """Say how many blocks the cache in DIR holds, and how many runs use it now."""
    found = headrace.cache.describe_cache(folder)
    if as_json:
        print_json(found)
        return
    pairs = [
        (
            "holds",
            f"{plural(found.blocks, 'block')}, {size(found.num_bytes)}, of {size(found.block_bytes)} each at most",
        ),
        ("now", f"{plural(found.runs, 'run')}, {plural(found.fetching, 'block')} being fetched"),
    ]
    print_report([f"{folder}: a cache of blocks", *listing(pairs)])


@cache.command(cls=Command, name="verify", short_help="Read every block, and remove damaged ones.")
@click.argument("folder", metavar="DIR")
@json_option
@click.pass_context
def verify(ctx: click.Context, /, folder: str, as_json: bool) -> None:
    """Read every block of the cache in DIR, compare it with its checksum, and remove what is damaged or left over.

    Exit code 0: all is well; 1: something was wrong, and is removed, so that it is fetched again.
    """
    found = headrace.cache.check_cache(folder)
    if as_json:
        print_json({"cache": folder, "ok": not found, "removed": found})
    else:
        print_report(
            [*found, f"{folder}: {plural(len(found), 'fault')}" if found else f"{folder}: all blocks are right"]
        )
    if found:
        ctx.exit(FAULTY)


@cache.command(cls=Command, name="clear", short_help="Remove all blocks.")
@click.argument("folder", metavar="DIR")
@json_option
def clear(folder: str, as_json: bool) -> None:
    """Remove all blocks of the cache in DIR, except those that are being fetched now. Nothing else is removed."""
    number = headrace.cache.clear_cache(folder)
    if as_json:
        print_json({"cache": folder, "removed": number})
    else:
        click.echo(f"{folder}: {plural(number, 'block')} removed")


def plan_lines(found: ReadingPlan) -> list[str]:
    """Return the report of a plan."""
    ratio = found.read_bytes / max(1, found.stored_bytes)
    lines = [
        f"{found.run}: steps {count(found.first_step)} to {count(found.end_step - 1)} on {plural(found.nodes, 'node')}",
        f"  data    {plural(found.stored_files, 'file')}, {size(found.stored_bytes)}",
        f"  reads   {plural(found.reads, 'block')} of {size(found.block_bytes)} in some step",
        f"  used    {size(found.read_bytes)} of them, {ratio:.2f} times the data",
        f"  caches  {size(found.limit_bytes)} a node, {size(found.limit_bytes * found.nodes)} in all",
    ]
    if found.followed < 1:
        lines.append(f"  sample  {found.followed:.2%} of the blocks were followed; errors are one standard error")
    lines += ["", *_policies(found, found.caches)]
    if found.dealt:
        lines += ["", f"with samples dealt to the nodes that hold their blocks, {found.foreign:.1%} foreign:"]
        lines += _policies(found, found.dealt)
    epochs = [one.epoch for one in found.caches[0].epochs]
    if len(epochs) > 1:
        caches = [(one.policy, one) for one in found.caches] + [(f"{one.policy}, dealt", one) for one in found.dealt]
        rows = [["hit rate in epoch", *(f"{epoch:,}" for epoch in epochs[:_SHOWN_EPOCHS])]]
        rows += [[name, *(f"{each.hit_rate:.1%}" for each in one.epochs[:_SHOWN_EPOCHS])] for name, one in caches]
        lines += ["", *table(rows)]
        if len(epochs) > _SHOWN_EPOCHS:
            lines.append(f"  and {len(epochs) - _SHOWN_EPOCHS:,} more epochs (--json lists all)")
    return [*lines, *found.notes]


def _policies(found: ReadingPlan, caches: Sequence[PlannedCache]) -> list[str]:
    """Return a table of policies."""
    is_exact = found.followed == 1
    rows = [["policy", "hit rate", "GETs", "fetched", "of what is used", "busiest steps"]]
    for one in caches:
        rows.append(
            [
                one.policy,
                f"{one.hit_rate:.1%}" + ("" if is_exact else f" ± {one.hit_rate_error:.1%}"),
                count(one.gets),
                size(one.fetched_bytes) + ("" if is_exact else f" ± {size(one.fetched_bytes_error)}"),
                f"{one.fetched_bytes / max(1, found.read_bytes):.2f}",
                f"{size(one.peak_step_bytes)} a step",
            ]
        )
    return table(rows)


def _steps(text: str) -> tuple[int, int]:
    first, sign, last = text.partition(":")
    try:
        if not sign:
            raise ValueError(text)
        return int(first), int(last)
    except ValueError:
        raise ConfigError(f"--steps {text}: write A:B, the first step and the one behind the last") from None
