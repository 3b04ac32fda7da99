from headrace.preparing.energon.job import plan_energon as plan_energon, prepare_energon as prepare_energon
from headrace.preparing.energon.options import (
    DatasetChoice as DatasetChoice,
    EnergonOptions as EnergonOptions,
    MediaFilter as MediaFilter,
    SplitChoice as SplitChoice,
)
from headrace.preparing.energon.state import DuplicateKey as DuplicateKey, EnergonReport as EnergonReport
