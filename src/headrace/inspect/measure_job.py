"""``headrace measure`` as a `Job` of one phase, ``measure``: a task for each chunk of samples.

The end is the local run, which finds the chunks on disk.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.datasets.encoded.dataset import opening_options
from headrace.datasets.encoded.samples import Encoder
from headrace.datasets.measuring.chunk import Measuring
from headrace.datasets.measuring.facts import MeasuredFacts
from headrace.datasets.measuring.running import WORK, chunk_name, keep_chunk, measure, spans, stored_facts
from headrace.datasets.media.dataset import MediaDataset
from headrace.encoders import TaskEncoder
from headrace.engine.job import OnePhaseJob, Phase, Show, TaskResult, save_plan
from headrace.engine.serving import Done, Parent, Progress, Reply, attempted, serve
from headrace.engine.shared import Shared
from headrace.errors import ConfigError
from headrace.io import hash_bytes, is_url, output_errors
from headrace.preparing.filters import function_fingerprint, load_function

KIND: Final = "measure"
MAIN: Final = "headrace.inspect.measure_job:main"


class MeasureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset and a task encoder, by names.

    Attributes:
        path: the dataset, as for `MediaDataset.open`.
        split_part: the part of an Energon dataset.
        split_config: the split file of an Energon dataset.
        dataset_config: the dataset file of an Energon dataset.
        trust_code: whether code that the dataset names may run.
        encoder: the class of the encoder, or a function that makes it, as ``module:name``.
        arguments: its arguments, JSON-safe.
    """

    path: str
    split_part: str | None = "train"
    split_config: str | None = None
    dataset_config: str | None = None
    trust_code: bool = False
    encoder: str
    arguments: dict[str, Any] = {}

    def opened(self) -> tuple[MediaDataset, Encoder]:
        """Open the dataset, and make the encoder.

        Raises:
            ConfigError: see `load_encoder`; or the dataset and the options do not fit.
            StoreError: there is no dataset, or it is malformed.
        """
        encoder = load_encoder(self.encoder, self.arguments)
        dataset = MediaDataset.open(
            self.path,
            self.split_part,
            split_config=self.split_config,
            dataset_config=self.dataset_config,
            **opening_options(encoder, {"trust_code": self.trust_code}),
        )
        return dataset, encoder


def load_encoder(name: str, arguments: dict[str, Any]) -> Encoder:
    """Make a task encoder with the class or the function ``module:name``.

    Raises:
        ConfigError: there is no such name; it does not accept these arguments; it returns something else.
    """
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


class MeasureTask(msgspec.Struct, frozen=True):
    """Measure the samples ``[first, end)``."""

    task_index: int
    first: int
    end: int

    @property
    def label(self) -> str:
        """What an error calls the task."""
        return f"samples {self.first:,} to {self.end:,}"


class MeasurePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of the job."""

    request: MeasureRequest
    folder: str
    """The folder that the path of the dataset is in; empty if it is absolute, or a URL."""

    code: str
    """Fingerprint of the module of the encoder."""

    facts: str
    """Hash of everything that decides the facts."""

    samples: int

    @property
    def phase(self) -> Phase:
        """The only phase. Its name tells it from that of another plan."""
        return Phase(name=f"measure-{hash_bytes(msgspec.json.encode(self))[:8]}", num_tasks=len(self.tasks))

    @property
    def tasks(self) -> list[MeasureTask]:
        """All tasks, in the order of the samples."""
        return [MeasureTask(index, first, end) for index, (first, end) in enumerate(spans(self.samples))]

    def opened(self) -> tuple[MediaDataset, Encoder]:
        """Open dataset and encoder, and refuse those that are not the ones of the plan.

        Raises:
            ConfigError: the code or the dataset on this host differs from the plan's; what
                `MeasureRequest.opened` raises.
        """
        request = self.request
        opened = request.opened()
        for what, found, wanted in (
            ("the code of the encoder", function_fingerprint(request.encoder), self.code),
            ("the dataset, or the encoder,", Measuring(*opened).contents_name, self.facts),
        ):
            if found != wanted:
                raise ConfigError(
                    f"{request.path}, {request.encoder}: {what} on host {platform.node()} is not that of the plan:"
                    " bring the same to all hosts, or plan again"
                )
        return opened


def plan_measure(request: MeasureRequest, *, folder: str | os.PathLike[str] | None = None) -> Path:
    """Plan the measuring of a dataset, for processes on any hosts to do its tasks.

    Args:
        request: what is measured.
        folder: as for `measure`; all hosts must see it.

    Returns:
        The folder of the facts. If the facts are there already, nothing is planned.

    Raises:
        ConfigError, StoreError: as `measure`.
        OutputError: the plan cannot be written.
    """
    measuring = Measuring(*request.opened())
    place, found = stored_facts(measuring, folder)
    if found is None:
        plan = MeasurePlan(
            request=request,
            folder="" if is_url(request.path) or Path(request.path).is_absolute() else str(Path.cwd()),
            code=function_fingerprint(request.encoder),
            facts=measuring.contents_name,
            samples=len(measuring.dataset),
        )
        work = WORK(place)
        with output_errors(work, "make the folder"):
            work.mkdir(parents=True, exist_ok=True)
        save_plan(work, KIND, plan, {})
    return place


class MeasureJob(OnePhaseJob):
    """See the module. The output is the folder of the facts."""

    kind = KIND
    main = MAIN
    output: Path

    def __init__(self, output: Path, shared: Shared, plan: msgspec.Raw) -> None:
        self._plan = msgspec.json.decode(plan, type=MeasurePlan)
        super().__init__(output, shared, self._plan.phase, self._plan.tasks)

    def setup(self, phase: Phase, results: Path) -> MeasureSetup:
        """See `Job`."""
        return MeasureSetup(parent=os.getpid(), plan=self._plan, results=str(results))

    def finish(self, show: Show) -> MeasuredFacts:
        """See `Job`: merge the chunks, as the end of a local run.

        This process works in the folder of the plan meanwhile, since faults name the dataset by its path.
        """
        output = self.output.absolute()
        if MeasuredFacts.find(output) is None:
            self.known_receipts().adopt(self.work.absolute())
        with contextlib.ExitStack() as stack:
            if self._plan.folder:
                with output_errors(Path(self._plan.folder), "work in"):
                    stack.enter_context(contextlib.chdir(self._plan.folder))
            dataset, encoder = self._plan.opened()
            return measure(dataset, encoder, folder=output.parent, on_samples=lambda *numbers: show.progress(numbers))


class MeasureSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a worker: what is the same for all tasks."""

    parent: int
    plan: MeasurePlan
    results: str


class _Worker:
    """Does tasks in a worker. The dataset is opened with the first, and stays open."""

    def __init__(self, parent: Parent, setup: MeasureSetup) -> None:
        self._parent = parent
        self._plan = setup.plan
        self._results = Path(setup.results)
        self._measuring: Measuring | None = None

    def handle(self, task: MeasureTask) -> Reply:
        """Do a task; any error becomes a `Failed`."""
        return attempted(task.task_index, lambda: Done.of(task.task_index, self._do(task)))

    def _do(self, task: MeasureTask) -> TaskResult:
        measuring = self._measuring = self._measuring or self._opened()
        chunk = measuring.chunk(task.first, task.end, self._teller(task))
        name = chunk_name((task.first, task.end))
        keep_chunk(self._results, name, chunk)
        outputs = int(chunk.arrays["num_outputs"].sum())
        return TaskResult(files=(name,), counts={"samples": task.end - task.first, "outputs": outputs})

    def _teller(self, task: MeasureTask) -> Callable[[int], None]:
        return lambda number: self._parent.report(Progress(task.task_index, 0, number, 0))

    def _opened(self) -> Measuring:
        if self._plan.folder:  # faults name the path as it was given
            os.chdir(self._plan.folder)
        return Measuring(*self._plan.opened())


def main(descriptor: int) -> None:
    """Run a worker: do the tasks that the parent sends over this socket."""
    serve(descriptor, MeasureSetup, MeasureTask, lambda parent, setup: _Worker(parent, setup).handle)
