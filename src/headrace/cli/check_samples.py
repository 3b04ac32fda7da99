"""``headrace check`` of samples and metadatasets: its options, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from headrace.cli.command import part_options, print_json
from headrace.cli.figures import count, duration, plural, problem_lines, size
from headrace.cli.progress import ProgressLine
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.cli.media.checking import SampleVerdict
    from headrace.cli.media.mix_checking import MixVerdict
    from headrace.cli.media.opening import SampleOptions
    from headrace.stores import Problem

F = TypeVar("F", bound=Callable[..., Any])

_FOR_TOKENS: Final = (
    *("tokenizer", "max_seq_len", "strategy", "over_long", "window_documents", "segment_multiple", "repack", "key"),
    *("plan_folder", "dialect", "documents"),
)
_FOR_SAMPLES: Final = ("decode", "quarantine", "workers", "split_part", "split_config", "dataset_config")


def check_options(command: F) -> F:
    """The options for samples alone."""
    workers = click.option("--workers", metavar="N", type=int, help="With --decode: processes; one a usable core.")
    decode = click.option("--decode", is_flag=True, help="Of samples: decode every picture, video, sound, text.")
    quarantine = click.option("--quarantine", is_flag=True, help="With --decode: leave what is at fault out.")
    return decode(quarantine(workers(part_options(command))))


def refuse_check_options(path: str, named: Collection[str]) -> None:
    """Raise ConfigError where an option is for samples, and PATH holds tokens."""
    for name in _FOR_SAMPLES:
        if name in named:
            raise ConfigError(
                f"{path}: --{name.replace('_', '-')} is for samples with named parts; this is a store of tokens"
            )


def check(path: str, given: dict[str, Any], named: Collection[str], *, quiet: bool, as_json: bool) -> bool | None:
    """Check samples, or a metadataset, and say what is wrong; whether nothing is, or None where neither is at the path.

    Raises:
        HeadraceError: as `check_samples` and `check_mix`; or an option is for something else.
    """
    from headrace.stores.sample_layouts import sample_layout

    mixes = path.endswith(".yaml")
    if not mixes and sample_layout(path) is None:
        return None
    for name in ("split_config", "dataset_config"):
        if mixes and name in named:
            raise ConfigError(f"{path}: --{name.replace('_', '-')} is what a metadataset says itself of each dataset")
    for name in _FOR_TOKENS:
        if name in named:
            raise ConfigError(f"{path}: an option for tokens was given ({name}), and this store holds samples")
    if given["workers"] is not None and (given["workers"] < 1 or not given["decode"]):
        raise ConfigError(f"--workers {given['workers']}: is a number of processes, 1 or more, and goes with --decode")
    if given["quarantine"] and (mixes or not given["decode"]):
        raise ConfigError(f"{path}: --quarantine goes with --decode, of one dataset")
    from headrace.cli.media.checking import SampleCheck, check_samples
    from headrace.cli.media.opening import SampleOptions
    from headrace.prepare.run import usable_cores

    options = {name: given[name] for name in ("split_part", "split_config", "dataset_config")}
    wanted = SampleCheck(
        dataset=SampleOptions(**options), decode=given["decode"], workers=given["workers"] or usable_cores()
    )
    with ProgressLine(quiet=quiet) as line:

        def show_read(file: str, num_bytes: int) -> None:
            if line.is_due:
                line.show(f"checking {file} ({size(num_bytes)} read)")

        def show_decoded(done: int, samples: int) -> None:
            if line.is_due:
                line.show(f"decoding: {done / max(samples, 1):6.1%}  {count(done)} of {plural(samples, 'sample')}")

        if mixes:
            from headrace.cli.check_mix import mix_problems, mix_summary
            from headrace.cli.media.mix_checking import check_mix

            mix = check_mix(path, wanted, on_read=show_read, on_decoded=show_decoded)
            told = _Told(mix, mix.ok, list(mix_problems(mix)), mix_summary(mix, line.elapsed_s), line.elapsed_s)
        else:
            verdict = check_samples(path, wanted, on_read=show_read, on_decoded=show_decoded)
            if verdict is None:
                return None
            lines = summary(verdict, line.elapsed_s)
            if given["quarantine"]:
                lines.append(_quarantined(path, wanted.dataset, verdict))
            told = _Told(verdict, verdict.ok, list(verdict.problems), lines, line.elapsed_s)
    _tell(told, quiet=quiet, as_json=as_json)
    return told.ok


def _quarantined(path: str, options: SampleOptions, verdict: SampleVerdict) -> str:
    """Put the samples that cannot be decoded on the list of bad ones."""
    from headrace.cli.media.opening import need_samples
    from headrace.stores.quarantine import add_bad_samples

    bad = () if verdict.decoded is None else verdict.decoded.bad
    if not bad:
        return f"{path}: nothing to be left out"
    with need_samples(path, options) as store:
        return f"{path}: {plural(add_bad_samples(store, bad), 'sample')} left out from now on"


class _Told(NamedTuple):
    """A verdict, and what is printed of it."""

    verdict: SampleVerdict | MixVerdict
    ok: bool
    problems: list[Problem]
    lines: list[str]
    elapsed_s: float


def _tell(told: _Told, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        import msgspec

        from headrace.cli.media.texts import writable

        print_json(writable({**msgspec.to_builtins(told.verdict), "seconds": round(told.elapsed_s, 3)}))
        return
    from headrace.cli.views.safe_text import safe_text

    for shown in problem_lines(told.problems):
        click.echo(safe_text(shown))
    if not quiet:
        click.echo("\n".join(map(safe_text, told.lines)))


def summary(verdict: SampleVerdict, elapsed_s: float) -> list[str]:
    """The end of the verdict for people."""
    lines = [f"note: {note}" for note in verdict.notes]
    if verdict.decoded is not None:
        found = verdict.decoded
        parts = ", ".join(f"{name} {count(number)}" for name, number in found.parts.items()) or "none"
        faulty = ", ".join(f"{name} {count(number)}" for name, number in found.faulty_parts.items())
        lines.append(f"{verdict.path}: decoded: {parts}" + (f"; at fault: {faulty}" if faulty else ""))
    if verdict.problems:
        return [*lines, f"{verdict.path}: {plural(len(verdict.problems), 'fault')}"]
    what = "" if verdict.decoded is None else ", every part decoded"
    what += ", hashed" if verdict.hashed else " (no headrace.json vouches for the bytes)"
    numbers = f"{plural(verdict.samples, 'sample')} in {plural(verdict.shards, 'shard')}, {size(verdict.bytes)}"
    return [*lines, f"{verdict.path}: whole: {numbers}, every header read{what}, {duration(elapsed_s)}"]
