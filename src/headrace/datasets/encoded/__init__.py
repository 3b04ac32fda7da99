"""Media samples that go through a task encoder.

    fixed       EncodedDataset     one output for each sample
    measured    MeasuredDataset    filtered, grouped and packed by facts that `measure` stored
    framed      Framed             none, one or several outputs; filtered, grouped and packed while the run goes on
                  --> FramedRun        adds order, lanes and batches
                  --> UnitReader       makes units in one process

samples    `SampleEncoder` makes the outputs of a sample for all three, and applies the error policy; packs and batches;
           the restore keys of outputs and packs
framed     what outputs are made into, for measured sources, too, and which hooks that needs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.datasets.encoded.dataset import EncodedDataset
    from headrace.datasets.encoded.framed import Framed
    from headrace.datasets.encoded.framed_run import FramedRun
    from headrace.datasets.encoded.measured import MeasuredDataset
    from headrace.datasets.encoded.unit_reader import UnitReader

_HOMES = {
    "EncodedDataset": "headrace.datasets.encoded.dataset",
    "Framed": "headrace.datasets.encoded.framed",
    "FramedRun": "headrace.datasets.encoded.framed_run",
    "MeasuredDataset": "headrace.datasets.encoded.measured",
    "UnitReader": "headrace.datasets.encoded.unit_reader",
}

__all__ = [
    "EncodedDataset",
    "Framed",
    "FramedRun",
    "MeasuredDataset",
    "UnitReader",
]

if not TYPE_CHECKING:
    # Lazy, since `headrace.datasets.measuring` imports `samples` here, and MeasuredDataset imports it.
    __getattr__, __dir__ = lazily(__name__, _HOMES)
