"""Media for training under the names of Megatron-Energon: a path goes in, a resumable loader comes out.

    get_train_dataset(path, ...)  --> EnergonDataset --get_savable_loader--> EnergonLoader --> batches of this rank
    get_val_dataset(path, ...)    --> (samples and order)                     save_state_rank(), restore_state_rank()

    wrappers: FilterDataset, BlendDataset, ...    named: CaptioningWebdataset, CrudeWebdataset, ...

The order is that of `headrace.Run`, so a state is a position: under 1 KB, the same on every rank, and valid for any
number of ranks and workers. Only ``order="energon"`` is Energon's own order, which is bound to ranks and workers.
Batches are dicts, as those of `headrace.Loader`. A task encoder that groups, packs, or makes zero or several outputs of
a sample needs a framed run. Then a state holds the lanes that a rank serves.
"""

from headrace.compat.energon.dataset import EnergonDataset, WorkerConfig
from headrace.compat.energon.getting import (
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from headrace.compat.energon.loader import EnergonLoader
from headrace.compat.energon.named import (
    BaseCoreDataset,
    BaseWebdataset,
    CaptioningWebdataset,
    CrudeWebdataset,
    DefaultDecoderWebdataset,
    DefaultGenericWebdataset,
    ImageWebdataset,
    OCRWebdataset,
    VQAWebdataset,
)
from headrace.compat.energon.wrappers import (
    BlendDataset,
    ConcatDataset,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    MixBatchDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleBufferDataset,
)

__all__ = [
    "BaseCoreDataset",
    "BaseWebdataset",
    "BlendDataset",
    "CaptioningWebdataset",
    "ConcatDataset",
    "CrudeWebdataset",
    "DefaultDecoderWebdataset",
    "DefaultGenericWebdataset",
    "EnergonDataset",
    "EnergonLoader",
    "FilterDataset",
    "GroupBatchDataset",
    "ImageWebdataset",
    "IterMapDataset",
    "LimitDataset",
    "MixBatchDataset",
    "OCRWebdataset",
    "PackingDataset",
    "RepeatDataset",
    "ShuffleBufferDataset",
    "VQAWebdataset",
    "WorkerConfig",
    "get_loader",
    "get_savable_loader",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
]
