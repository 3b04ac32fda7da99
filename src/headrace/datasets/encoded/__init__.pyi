from headrace.datasets.encoded.dataset import EncodedDataset as EncodedDataset
from headrace.datasets.encoded.framed import Framed as Framed
from headrace.datasets.encoded.framed_run import FramedRun as FramedRun
from headrace.datasets.encoded.measured import MeasuredDataset as MeasuredDataset
from headrace.datasets.encoded.unit_reader import UnitReader as UnitReader
