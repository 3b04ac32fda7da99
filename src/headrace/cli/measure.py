"""``headrace measure``: what a task encoder makes of every sample, found out once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.command import Command, config_options, json_option
from headrace.cli.figures import count, plural, short
from headrace.cli.progress import ProgressLine
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.datasets.encoded.samples import Encoder


@click.command(cls=Command, name="measure", short_help="Find out once what a task encoder makes of every sample.")
@click.argument("path", metavar="DATASET")
@click.option(
    "--encoder", metavar="MODULE:CLASS", required=True, help="The task encoder; from the current folder, too."
)
@click.option("--set", "given", metavar="NAME=VALUE", multiple=True, help="An argument of the encoder; repeatable.")
@click.option("--output", "-o", metavar="DIR", help="Where the folder of facts is made; the cache folder.")
@click.option("--workers", metavar="N", type=int, help="Processes; by default one a usable core.")
@click.option("--split-part", metavar="NAME", default="train", help="Of Energon's datasets: train, val, ...")
@config_options
@click.option("--trust-code", is_flag=True, help="Run code that a dataset.yaml names.")
@click.option("--faults", metavar="FILE", help="Write every bad sample with its reason to a file of JSON lines.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@json_option
def command(
    path: str, encoder: str, given: tuple[str, ...], output: str | None, workers: int | None, split_part: str,
    split_config: str | None, dataset_config: str | None, trust_code: bool, faults: str | None, quiet: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run a task encoder over DATASET and keep what it makes of each sample: number, lengths and groups of outputs.

    With these facts, filters, generators, packs and groups have as many samples as they have, in an order of their own,
    and resume at any place: headrace.MeasuredDataset. They lie in a folder named by what decides them, which is printed
    first; where they are there already nothing is run. A run that was ended goes on.

    Samples that cannot be made are bad, and left out: --faults lists them. Values of --set are JSON, or else text.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: is a number of processes, 1 or more")
    if path.endswith(".yaml"):
        raise ConfigError(f"{path}: is a metadataset; measure each of its datasets, which headrace info {path} lists")
    from headrace.cli.measured_facts import print_measured
    from headrace.datasets import MediaDataset, measure
    from headrace.datasets.encoded.dataset import opening_options
    from headrace.prepare.run import usable_cores

    task_encoder = load_encoder(encoder, _arguments(given))
    options = opening_options(task_encoder, {"trust_code": trust_code})
    dataset = MediaDataset.open(path, split_part, split_config=split_config, dataset_config=dataset_config, **options)
    before: list[int] = []
    with ProgressLine(quiet=quiet or as_json) as line:

        def show(done: int, num_samples: int) -> None:
            before.append(done) if not before else None
            if line.is_due:
                rate = (done - before[0]) / max(line.elapsed_s, 1e-9)
                line.show(
                    f"measuring {done / num_samples:6.1%}  {count(done)} of {count(num_samples)}, {short(rate)}/s"
                )

        found = measure(dataset, task_encoder, folder=output, workers=workers or usable_cores(), on_samples=show)
    if faults is not None:
        from headrace.io import atomic_write

        atomic_write(Path(faults), found.arrays["faults"].tobytes())
    print_measured(found, as_json=as_json, were_there=not before)
    if not quiet and not as_json and faults is not None:
        click.echo(f"{faults}: {plural(found.summary.bad_samples, 'bad sample')}", err=True)


def load_encoder(name: str, arguments: dict[str, Any]) -> Encoder:
    """The task encoder of a class, or of a function that makes one, ``module:name``.

    Raises:
        ConfigError: there is none; it does not take these arguments; what it gives is no task encoder.
    """
    from headrace.encoders import TaskEncoder
    from headrace.prepare.filters import load_function

    make = load_function(name)
    try:
        made = make(**arguments)
    except TypeError as error:
        raise ConfigError(f"--encoder {name}: cannot be made with the arguments {arguments}: {error}") from error
    except Exception as error:  # whatever the user's class does
        raise ConfigError(f"--encoder {name}: cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, TaskEncoder):
        raise ConfigError(f"--encoder {name}: is {made!r:.80}; expected a class of headrace.encoders.TaskEncoder's")
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
