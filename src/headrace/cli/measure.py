"""``headrace measure``: run a task encoder once over every sample, and keep what it makes of each."""

from __future__ import annotations

from typing import Annotated, Any

import click

import headrace
from headrace import inspect
from headrace.cli.command import Found, command, write_file
from headrace.cli.job import LOCAL, ExecutorOptions, hand_over
from headrace.cli.options import Positive
from headrace.errors import ConfigError
from headrace.inspect.figures import plural


@command("measure", "Run a task encoder once over every sample.", urls=("path",))
def measure(
    path: Annotated[str, "DATASET"],
    *,
    output: str | None = None,
    workers: Positive | None = None,
    faults: Annotated[str | None, "FILE"] = None,
    executor: ExecutorOptions = LOCAL,
    quiet: bool = False,
    as_json: bool = False,
    **given: Annotated[Any, "headrace.inspect.measure_job:MeasureRequest"],
) -> Found:
    """Run a task encoder over DATASET and keep what it makes of each sample: number, lengths and groups of outputs.

    With these facts a headrace.MeasuredDataset knows how many samples filters, generators, packs and groups make, can
    shuffle them, and resumes at any place. The facts are kept in a folder that is named by a hash of everything that
    decides them; its path is printed first. If the folder exists already, nothing is run. If a run ends early, the same
    command continues it.

    Samples that the encoder cannot process are bad and left out; --faults lists them.

    Args:
        arguments: argument of the encoder, as JSON or text; repeatable.
        output: folder in which the folder of facts is made; by default the cache folder.
        trust_code: allow code that the dataset names to run.
        faults: write all bad samples with their reasons to this file of JSON lines.
    """
    if path.endswith(".yaml"):
        raise ConfigError(f"{path} is a metadataset: measure each of its datasets, which headrace info {path} lists")
    from headrace.inspect.measure_job import MeasureRequest, plan_measure

    if faults is not None and not executor.is_local:
        raise ConfigError(f"--faults {faults} is for one host: give it once the facts are there, and nothing is run")
    place = plan_measure(MeasureRequest(path=path, **given), folder=output)
    told = None if place.exists() else hand_over(executor, str(place), workers=workers, quiet=quiet)
    if told is not None and not executor.is_local:
        return told
    facts = headrace.datasets.MeasuredFacts.open(place)
    if faults is not None:
        write_file(faults, facts.arrays["faults"].tobytes())
    if not quiet and not as_json and faults is not None:
        click.echo(f"{faults}: {plural(facts.summary.bad_samples, 'bad sample')}", err=True)
    return told or tell(facts, str(place), 0.0, were_there=True)


def tell(facts: headrace.datasets.MeasuredFacts, output: str, elapsed_s: float, *, were_there: bool = False) -> Found:
    """Return the report of a job."""
    found = inspect.MeasuredDescription(path=output, were_there=were_there, facts=facts.summary)
    return Found(found, always=found.shown())
