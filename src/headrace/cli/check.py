"""``headrace check``: check that a store, a dataset of samples or a metadataset is whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from headrace.cli.command import Command, dialect_options, is_given, json_option, part_options, print_json, print_report
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, duration, plural, problem_lines, size

if TYPE_CHECKING:
    from headrace.inspect.metadataset import MixVerdict
    from headrace.inspect.sample_checks import SampleVerdict
    from headrace.inspect.samples import SampleOptions
    from headrace.inspect.store_checks import PackVerdict, Verdict
    from headrace.plan.packing import Packing
    from headrace.stores import Dialect, Documents, Problem

F = TypeVar("F", bound=Callable[..., Any])

_FOR_TOKENS: Final = (
    *("tokenizer", "seq_len", "strategy", "over_long", "window_documents", "segment_multiple", "repack", "key"),
    *("plan_folder", "dialect", "documents"),
)
_FOR_SAMPLES: Final = ("decode", "quarantine", "workers", "split_part", "split_config", "dataset_config")


def check_options(command: F) -> F:
    """Add the options for datasets of samples."""
    workers = click.option(
        "--workers", metavar="N", type=int, help="With --decode: number of processes (default: one per usable core)."
    )
    decode = click.option("--decode", is_flag=True, help="Decode every picture, video, sound and text of the samples.")
    quarantine = click.option(
        "--quarantine",
        is_flag=True,
        help="With --decode: leave samples that cannot be decoded out of the dataset from now on.",
    )
    return decode(quarantine(workers(part_options(command))))


def refuse_check_options(path: str, named: Collection[str]) -> None:
    """Raise ConfigError if an option for samples is given, and PATH holds tokens."""
    for name in _FOR_SAMPLES:
        if name in named:
            raise ConfigError(
                f"{path}: --{name.replace('_', '-')} is for samples with named parts; this is a store of tokens"
            )


def print_sample_check(
    path: str, given: dict[str, Any], named: Collection[str], *, quiet: bool, as_json: bool
) -> bool | None:
    """Check a dataset of samples or a metadataset, and print its faults.

    Returns:
        Whether it has no faults; None if neither kind is at the path.

    Raises:
        HeadraceError: any that `check_samples` and `check_mix` raise; or an option is for another kind of data.
    """
    from headrace.stores.sample_layouts import sample_layout

    mixes = path.endswith(".yaml")
    if not mixes and sample_layout(path) is None:
        return None
    for name in ("split_config", "dataset_config"):
        if mixes and name in named:
            raise ConfigError(
                f"{path}: --{name.replace('_', '-')}: leave it out, the metadataset names these files for each dataset"
            )
    for name in _FOR_TOKENS:
        if name in named:
            raise ConfigError(f"{path}: this store holds samples, and the option {name} is for tokens")
    if given["workers"] is not None and (given["workers"] < 1 or not given["decode"]):
        raise ConfigError(
            f"--workers {given['workers']}: give a number of processes, 1 or more, together with --decode"
        )
    if given["quarantine"] and (mixes or not given["decode"]):
        raise ConfigError(f"{path}: --quarantine needs --decode and a single dataset")
    from headrace.inspect.sample_checks import SampleCheck, check_samples
    from headrace.inspect.samples import SampleOptions
    from headrace.preparing.run import usable_cores

    options = {name: given[name] for name in ("split_part", "split_config", "dataset_config")}
    wanted = SampleCheck(
        dataset=SampleOptions(**options), decode=given["decode"], workers=given["workers"] or usable_cores()
    )
    with ProgressBar(quiet=quiet) as bar:

        def show_read(file: str, num_bytes: int) -> None:
            bar.update("checking", text=f"{file} ({size(num_bytes)} read)", speeds={"B": num_bytes})

        def show_decoded(done: int, samples: int) -> None:
            text = f"{count(done)} of {plural(samples, 'sample')}"
            bar.update("decoding", done, samples, text=text, speeds={"samples": done})

        if mixes:
            from headrace.inspect.metadataset import check_mix

            mix = check_mix(path, wanted, on_read=show_read, on_decoded=show_decoded)
            finding = _Finding(mix, mix.ok, list(mix_problems(mix)), mix_summary(mix, bar.elapsed_s), bar.elapsed_s)
        else:
            verdict = check_samples(path, wanted, on_read=show_read, on_decoded=show_decoded)
            if verdict is None:
                return None
            lines = sample_summary(verdict, bar.elapsed_s)
            if given["quarantine"]:
                lines.append(_quarantined(path, wanted.dataset, verdict))
            finding = _Finding(verdict, verdict.ok, list(verdict.problems), lines, bar.elapsed_s)
    _print_finding(finding, quiet=quiet, as_json=as_json)
    return finding.ok


def _quarantined(path: str, options: SampleOptions, verdict: SampleVerdict) -> str:
    """Put the samples that cannot be decoded on the list of bad samples, and return the line that says so."""
    from headrace.inspect.samples import need_samples
    from headrace.stores.quarantine import add_bad_samples

    bad = () if verdict.decoded is None else verdict.decoded.bad
    if not bad:
        return f"{path}: no sample has to be left out"
    with need_samples(path, options) as store:
        return f"{path}: {plural(add_bad_samples(store, bad), 'sample')} left out from now on"


class _Finding(NamedTuple):
    """A verdict, and the lines to print about it."""

    verdict: SampleVerdict | MixVerdict
    ok: bool
    problems: list[Problem]
    lines: list[str]
    elapsed_s: float


def _print_finding(finding: _Finding, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        import msgspec

        print_json({**msgspec.to_builtins(finding.verdict), "seconds": round(finding.elapsed_s, 3)})
        return
    from headrace.inspect.figures import safe_text

    for shown in problem_lines(finding.problems):
        click.echo(safe_text(shown))
    if not quiet:
        print_report(map(safe_text, finding.lines))


def sample_summary(verdict: SampleVerdict, elapsed_s: float) -> list[str]:
    """Return the last lines of the report: notes, then one line for the dataset."""
    lines = [f"note: {note}" for note in verdict.notes]
    if verdict.decoded is not None:
        found = verdict.decoded
        parts = ", ".join(f"{name} {count(number)}" for name, number in found.parts.items()) or "none"
        faulty = ", ".join(f"{name} {count(number)}" for name, number in found.faulty_parts.items())
        lines.append(f"{verdict.path}: decoded: {parts}" + (f"; at fault: {faulty}" if faulty else ""))
    if verdict.problems:
        return [*lines, f"{verdict.path}: {plural(len(verdict.problems), 'fault')}"]
    what = "" if verdict.decoded is None else ", every part decoded"
    what += ", hashed" if verdict.hashed else " (no headrace.json has hashes of the bytes)"
    numbers = f"{plural(verdict.samples, 'sample')} in {plural(verdict.shards, 'shard')}, {size(verdict.bytes)}"
    return [*lines, f"{verdict.path}: whole: {numbers}, every header read{what}, {duration(elapsed_s)}"]


FAULTY = 1


@click.command(cls=Command, name="check", short_help="Check that a store is whole.")
@click.argument("path", metavar="PATH")
@click.option(
    "--tokenizer",
    metavar="PATH",
    help="Tokeniser whose vocabulary the ids are checked against (default: that of the manifest).",
)
@click.option("--pack", "seq_len", metavar="N", type=int, help="Also make packs of N tokens and check them.")
@click.option(
    "--pack-strategy", "strategy", metavar="NAME", help="With --pack: strategy of the packs (default: best_fit)."
)
@click.option(
    "--pack-over-long",
    "over_long",
    metavar="NAME",
    help="With --pack: policy for documents longer than N (default: an error).",
)
@click.option(
    "--pack-window", "window_documents", metavar="N", type=int, help="With --pack: pack every N documents separately."
)
@click.option(
    "--pack-multiple", "segment_multiple", metavar="N", type=int, help="With --pack: pad segments to a multiple of N."
)
@click.option(
    "--pack-repack", "repack", is_flag=True, default=None, help="With --pack: check the plan of a run that re-packs."
)
@click.option(
    "--key", metavar="NAME", help="With --pack: the key to pack, if the store has several (default: the first)."
)
@click.option("--plan-folder", metavar="DIR", help="With --pack: folder of kept plans (default: the cache folder).")
@dialect_options
@check_options
@click.option("--quiet", "-q", is_flag=True, help="Show only faults, no progress or summary.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    path: str,
    tokenizer: str | None,
    key: str | None,
    plan_folder: str | None,
    dialect: Dialect | None,
    documents: Documents,
    quiet: bool,
    as_json: bool,
    decode: bool,
    quarantine: bool,
    workers: int | None,
    split_part: str | None,
    split_config: str | None,
    dataset_config: str | None,
    **packing: Any,
) -> None:
    """Read the whole store at PATH and report faults: hashes, sizes, structure, ids outside the vocabulary.

    PATH is a folder, a prefix with or without .bin or .idx, or a meta.json. All keys are read. With --pack, a store
    without faults is also packed as a run would do it: each pack is validated, and every token of every document must
    be accounted for. Exit code 0: no faults; 1: faults, each printed with its place; 4: there is no store.

    For tar shards, Energon datasets and other samples with named parts, the command checks every header against
    indices, counts and index.sqlite, and looks for duplicate keys and faults of split files; with --decode it decodes
    every part. For a metadataset (.yaml) it checks the file, its joins, and each of its datasets once.
    """
    from headrace.cli.measure import check_kept

    is_whole = check_kept(path, quiet=quiet, as_json=as_json)
    if is_whole is not None:
        if not is_whole:
            ctx.exit(FAULTY)
        return
    named = [name for name in ctx.params if is_given(ctx, name)]
    media = {"decode": decode, "workers": workers, "split_part": split_part, "split_config": split_config}
    media |= {"dataset_config": dataset_config, "quarantine": quarantine}
    is_whole = print_sample_check(path, media, named, quiet=quiet, as_json=as_json)
    if is_whole is not None:
        if not is_whole:
            ctx.exit(FAULTY)
        return
    refuse_check_options(path, named)
    from headrace.inspect.store_checks import check_store
    from headrace.stores import IndexedOptions

    wanted = _packing(packing, key=key, plan_folder=plan_folder)
    options = IndexedOptions(dialect=dialect, documents=documents)
    packs: PackVerdict | None = None
    with ProgressBar(quiet=quiet) as bar:

        def show(number: int, num_shards: int, shard: str, num_bytes: int) -> None:
            text = f"shard {number + 1:,} of {num_shards:,}: {shard} ({size(num_bytes)})"
            bar.update("checking", number, num_shards, text=text)

        def show_packs(done: int, num_packs: int) -> None:
            text = f"{count(done)} of {count(num_packs)}"
            bar.update("checking packs", done, num_packs, text=text, speeds={"packs": done})

        verdict = check_store(path, tokenizer=tokenizer, on_shard=show, options=options)
        problems = verdict.problems
        if wanted is not None and verdict.ok:
            from headrace.inspect.store_checks import check_packs

            folder = None if plan_folder is None else Path(plan_folder)
            packs, faults = check_packs(path, wanted, key=key, plan_folder=folder, on_packs=show_packs, options=options)
            problems = tuple(faults)
        elapsed_s = bar.elapsed_s
    if as_json:
        import msgspec

        found = msgspec.to_builtins(verdict) | {"ok": not problems, "problems": problems}
        if wanted is not None:
            found["packs"] = msgspec.to_builtins(packs)
        print_json({**found, "seconds": round(elapsed_s, 3)})
    else:
        for shown in problem_lines(problems):
            click.echo(shown)
        if not quiet:
            print_report(summary(verdict, packs, len(problems), elapsed_s))
            if wanted is not None and not verdict.ok:
                click.echo(f"{path}: its packs were not checked, because the store has faults")
    if problems:
        ctx.exit(FAULTY)


def _packing(given: dict[str, Any], *, key: str | None, plan_folder: str | None) -> Packing | None:
    """Return how to pack, with the defaults of `Packing` for options that are not given; None without ``--pack``."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if "seq_len" not in chosen:
        if chosen or key is not None or plan_folder is not None:
            raise ConfigError("the options of packs need the length of a pack: add --pack N")
        return None
    from headrace.plan.packing import Packing

    return Packing(**chosen)


def summary(verdict: Verdict, packs: PackVerdict | None, num_problems: int, elapsed_s: float) -> list[str]:
    """Return the last lines of the report: one for the store, one for its packs."""
    if num_problems:
        return [f"{verdict.path}: {plural(num_problems, 'fault')}"]
    what = (
        "read and hashed"
        if verdict.hashed
        else "read (no headrace.json has hashes of the bytes: only the structure was checked)"
    )
    ids = f", ids below {count(verdict.vocab_size)}" if verdict.vocab_size is not None else ""
    numbers = f"{plural(verdict.documents, 'document')}, {plural(verdict.tokens, 'token')}{ids}"
    read = f"{plural(verdict.files, 'file')}, {size(verdict.bytes)} {what}"
    lines = [f"{verdict.path}: whole: {read}, {numbers}, {duration(elapsed_s)}"]
    if packs is not None and packs.ledger is not None:
        ledger, packing = packs.ledger, packs.packing
        where = "" if packs.kept_plan is None else f", by the plan in {packs.kept_plan}"
        lines.append(
            f"{verdict.path}: {plural(packs.packs, 'pack')} of {plural(packing.seq_len, 'token')} right "
            f"({packing.strategy}): fill {ledger.fill:.3%}, {count(ledger.split_documents)} split, "
            f"{ledger.lost_share:.2%} of the tokens lost{where}"
        )
    return lines


def mix_problems(verdict: MixVerdict) -> Iterator[Problem]:
    """Yield the problems of the metadataset, then those of each dataset."""
    yield from verdict.problems
    for dataset in verdict.datasets:
        yield from dataset.problems


def mix_summary(verdict: MixVerdict, elapsed_s: float) -> list[str]:
    """Return the last lines of the report: one for each dataset, then one for the metadataset."""
    lines = []
    for dataset in verdict.datasets:
        lines += [f"note: {dataset.path}: {note}" for note in getattr(dataset, "notes", ())]
        state = plural(len(dataset.problems), "fault") if dataset.problems else f"whole: {_numbers(dataset)}"
        lines.append(f"{dataset.path}: {state}")
    number = sum(1 for _ in mix_problems(verdict))
    if number:
        return [*lines, f"{verdict.path}: {plural(number, 'fault')}"]
    reached = f"{plural(len(verdict.datasets), 'dataset')} in {plural(len(verdict.splits), 'split')}"
    joins = f", {plural(verdict.joins, 'join')} read" if verdict.joins else ""
    return [*lines, f"{verdict.path}: whole: {reached}{joins}, {duration(elapsed_s)}"]


def _numbers(dataset: SampleVerdict | Verdict) -> str:
    from headrace.inspect.sample_checks import SampleVerdict

    hashed = ", hashed" if dataset.hashed else ""
    if not isinstance(dataset, SampleVerdict):
        return f"{plural(dataset.documents, 'document')}, {size(dataset.bytes)} read{hashed}"
    decoded = ", every part decoded" if dataset.decoded is not None else ""
    samples = f"{plural(dataset.samples, 'sample')} in {plural(dataset.shards, 'shard')}"
    return f"{samples}, {size(dataset.bytes)}{decoded}{hashed}"
