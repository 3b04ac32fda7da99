"""``headrace measure`` with a dataset and an encoder by their names, so that processes on any hosts may measure."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.datasets.encoded.dataset import opening_options
from headrace.datasets.encoded.samples import Encoder
from headrace.datasets.measuring.chunk import Measuring
from headrace.datasets.measuring.running import MeasureJob, MeasurePlan, begin, remove_left, stored_facts
from headrace.datasets.media import MediaDataset
from headrace.encoders import TaskEncoder
from headrace.errors import ConfigError
from headrace.io import folder_of, output_errors
from headrace.preparing.filters import function_fingerprint, load_function


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


class NamedPlan(MeasurePlan, frozen=True, kw_only=True):
    """The plan of the measuring of what a request names."""

    request: MeasureRequest | None = None
    """None in the plan of objects of a program."""

    folder: str = ""
    """The folder that the path of the dataset is in; empty if it is absolute, or a URL."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[Measuring]:
        """Open dataset and encoder, and work in the folder of the plan, since faults name the path as it was given.

        Raises:
            ConfigError: the code or the dataset on this host differs from the plan's; what `MeasureRequest.opened`
                raises; nothing is named.
            OutputError: the folder is not there.
        """
        if (request := self.request) is None:
            with super().opened() as measuring:
                yield measuring
            return
        with contextlib.ExitStack() as stack:
            if self.folder:
                with output_errors(Path(self.folder), "work in"):
                    stack.enter_context(contextlib.chdir(self.folder))
            measuring = Measuring(*request.opened())
            for what, found, wanted in (
                ("the code of the encoder", function_fingerprint(request.encoder), self.code),
                ("the dataset, or the encoder,", measuring.contents_name, self.facts),
            ):
                if found != wanted:
                    raise ConfigError(
                        f"{request.path}, {request.encoder}: {what} on host {platform.node()} is not that of the plan:"
                        " bring the same to all hosts, or plan again"
                    )
            yield measuring


class NamedMeasureJob(MeasureJob):
    """The job of such a plan."""

    plan_type = NamedPlan


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
    if found is not None:
        remove_left(place)
    else:
        plan = NamedPlan(
            request=request,
            folder=folder_of(request.path),
            code=function_fingerprint(request.encoder),
            facts=measuring.contents_name,
            samples=len(measuring.dataset),
        )
        begin(place, plan)
    return place
