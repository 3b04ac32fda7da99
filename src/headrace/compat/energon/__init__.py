"""The names that programs import from ``megatron.energon``: change the import line, and a loader runs.

    get_train_dataset(path, ...)  --> EnergonDataset --get_savable_loader--> EnergonLoader --> batches of this rank
    get_val_dataset(path, ...)    --> (samples and order)                     save_state_rank(), restore_state_rank()

    getting      LimitDataset, RepeatDataset                 how many batches of a validation come
    wrappers     BlendDataset, PackingDataset, ...           framed sources and mixes of datasets of Headrace
    factories    DefaultDecoderWebdatasetFactory, ...        the base of a user's class that a dataset.yaml names
    named        CaptioningWebdataset, CrudeWebdataset, ...  the samples at a path, for a Run or a DataLoader

The order is that of `headrace.Run`, so a state is a position: under 1 KB, the same on every rank, and valid for any
number of ranks and workers. Only ``order="energon"`` is Energon's own order, which is bound to ranks and workers.
Batches are what the task encoder makes; ``as_columns`` makes them dicts, as those of `headrace.Loader`. A task encoder
that groups, packs, or makes zero or several outputs of a sample needs a framed run. Then a state holds the lanes that a
rank serves.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
