"""``headrace measure``: run a task encoder once over every sample, and keep what it makes of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.command import Command, config_options, json_option, print_json, print_report
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, listing, plural, size, table

if TYPE_CHECKING:
    from headrace.datasets import MeasuredFacts
    from headrace.datasets.encoded.samples import Encoder


@click.command(cls=Command, name="measure", short_help="Run a task encoder once over every sample.")
@click.argument("path", metavar="DATASET")
@click.option(
    "--encoder",
    metavar="MODULE:CLASS",
    required=True,
    help="Task encoder; the module may be in the current folder.",
)
@click.option(
    "--set", "given", metavar="NAME=VALUE", multiple=True, help="Argument of the encoder, as JSON or text; repeatable."
)
@click.option(
    "--output", "-o", metavar="DIR", help="Folder in which the folder of facts is made (default: the cache folder)."
)
@click.option("--workers", metavar="N", type=int, help="Number of processes (default: one per usable core).")
@click.option(
    "--split-part",
    metavar="NAME",
    default="train",
    help="Part of an Energon dataset: train, val, ... (default: train).",
)
@config_options
@click.option("--trust-code", is_flag=True, help="Allow code that a dataset.yaml names to run.")
@click.option("--faults", metavar="FILE", help="Write all bad samples with their reasons to this file of JSON lines.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@json_option
def command(
    path: str, encoder: str, given: tuple[str, ...], output: str | None, workers: int | None, split_part: str,
    split_config: str | None, dataset_config: str | None, trust_code: bool, faults: str | None, quiet: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run a task encoder over DATASET and keep what it makes of each sample: number, lengths and groups of outputs.

    With these facts a headrace.MeasuredDataset knows how many samples filters, generators, packs and groups make, can
    shuffle them, and resumes at any place. The facts are kept in a folder that is named by a hash of everything that
    decides them; its path is printed first. If the folder exists already, nothing is run. If a run ends early, the same
    command continues it.

    Samples that the encoder cannot process are bad and left out; --faults lists them.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: the number of processes must be 1 or more")
    if path.endswith(".yaml"):
        raise ConfigError(f"{path} is a metadataset: measure each of its datasets, which headrace info {path} lists")
    from headrace.datasets import MediaDataset, measure
    from headrace.datasets.encoded.dataset import opening_options
    from headrace.preparing.run import usable_cores

    task_encoder = load_encoder(encoder, _arguments(given))
    options = opening_options(task_encoder, {"trust_code": trust_code})
    dataset = MediaDataset.open(path, split_part, split_config=split_config, dataset_config=dataset_config, **options)
    before: list[int] = []
    with ProgressBar(quiet=quiet or as_json) as bar:

        def show(done: int, num_samples: int) -> None:
            before.append(done) if not before else None
            text = f"{count(done)} of {count(num_samples)}"
            bar.update("measuring", done, num_samples, text=text, speeds={"samples": done})

        found = measure(dataset, task_encoder, folder=output, workers=workers or usable_cores(), on_samples=show)
    if faults is not None:
        from headrace.io import atomic_write

        atomic_write(Path(faults), found.arrays["faults"].tobytes())
    print_measured(found, as_json=as_json, were_there=not before)
    if not quiet and not as_json and faults is not None:
        click.echo(f"{faults}: {plural(found.summary.bad_samples, 'bad sample')}", err=True)


def load_encoder(name: str, arguments: dict[str, Any]) -> Encoder:
    """Make a task encoder with the class or the function ``module:name``.

    Raises:
        ConfigError: there is no such name; it does not accept these arguments; it returns something else.
    """
    from headrace.encoders import TaskEncoder
    from headrace.preparing.filters import load_function

    make = load_function(name)
    try:
        made = make(**arguments)
    except TypeError as error:
        raise ConfigError(f"--encoder {name}: cannot be made with the arguments {arguments}: {error}") from error
    except Exception as error:  # The class is the user's: it may raise anything.
        raise ConfigError(f"--encoder {name}: cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, TaskEncoder):
        raise ConfigError(f"--encoder {name}: is {made!r:.80}; expected a subclass of headrace.encoders.TaskEncoder")
    return made


def _arguments(given: tuple[str, ...]) -> dict[str, Any]:
    import msgspec

    arguments: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--set {pair}: write --set NAME=VALUE, such as --set max_tokens=512")
        try:
            arguments[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            arguments[name] = value
    return arguments


MAX_GROUPS = 10


def find_measured(path: str) -> MeasuredFacts | None:
    """Open the facts in a folder; None if it holds no facts. Raises StoreError if they are damaged."""
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
    """Print facts, as ``headrace measure`` and ``headrace info`` do."""
    if as_json:
        print_json({"path": str(facts.path), **more, "facts": facts.summary})
    else:
        print_report(report(facts))


def check_kept(path: str, *, quiet: bool, as_json: bool) -> bool | None:
    """Read all bytes of kept facts, or of a kept plan or index, and print every difference from what was written.

    Returns:
        Whether there is no difference; None if nothing is kept at the path.
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
    """Return the report of facts."""
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
