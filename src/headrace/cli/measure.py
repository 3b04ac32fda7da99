"""``headrace measure``: run a task encoder once over every sample, and keep what it makes of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import headrace
from headrace import inspect
from headrace.cli.command import (
    Command,
    config_options,
    json_option,
    print_json,
    print_report,
    write_file,
)
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import count, plural

if TYPE_CHECKING:
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
    from headrace.datasets.encoded.dataset import opening_options
    from headrace.engine.processes import usable_cores

    task_encoder = load_encoder(encoder, _arguments(given))
    options = opening_options(task_encoder, {"trust_code": trust_code})
    dataset = headrace.MediaDataset.open(
        path, split_part, split_config=split_config, dataset_config=dataset_config, **options
    )
    before: list[int] = []
    with ProgressBar(quiet=quiet or as_json) as bar:

        def show(done: int, num_samples: int) -> None:
            before.append(done) if not before else None
            text = f"{count(done)} of {count(num_samples)}"
            bar.update("measuring", done, num_samples, text=text, speeds={"samples": done})

        facts = headrace.datasets.measure(
            dataset, task_encoder, folder=output, workers=workers or usable_cores(), on_samples=show
        )
    if faults is not None:
        write_file(faults, facts.arrays["faults"].tobytes())
    found = inspect.MeasuredDescription(path=str(facts.path), were_there=not before, facts=facts.summary)
    if as_json:
        print_json(found)
    else:
        print_report(found.lines())
    if not quiet and not as_json and faults is not None:
        click.echo(f"{faults}: {plural(facts.summary.bad_samples, 'bad sample')}", err=True)


def load_encoder(name: str, arguments: dict[str, Any]) -> Encoder:
    """Make a task encoder with the class or the function ``module:name``.

    Raises:
        ConfigError: there is no such name; it does not accept these arguments; it returns something else.
    """
    from headrace.preparing.filters import load_function

    make = load_function(name)
    try:
        made = make(**arguments)
    except TypeError as error:
        raise ConfigError(f"--encoder {name}: cannot be made with the arguments {arguments}: {error}") from error
    except Exception as error:  # The class is the user's: it may raise anything.
        raise ConfigError(f"--encoder {name}: cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, headrace.encoders.TaskEncoder):
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
