from headrace import (
    cache as cache,
    compat as compat,
    copying as copying,
    datasets as datasets,
    encoders as encoders,
    errors as errors,
    inspect as inspect,
    io as io,
    kinds as kinds,
    loader as loader,
    plan as plan,
    preparing as preparing,
    samples as samples,
    stores as stores,
    tracing as tracing,
    ui as ui,
)
from headrace._version import __version__ as __version__
from headrace.cache import Cache as Cache
from headrace.copying import convert as convert, merge as merge, split as split
from headrace.datasets import (
    Blend as Blend,
    Exclude as Exclude,
    FramedRun as FramedRun,
    GroupDataset as GroupDataset,
    MapDataset as MapDataset,
    MapStyleDataset as MapStyleDataset,
    MeasuredDataset as MeasuredDataset,
    MediaDataset as MediaDataset,
    PackedSequenceDataset as PackedSequenceDataset,
    PreferenceDataset as PreferenceDataset,
    PromptDataset as PromptDataset,
    Run as Run,
    ScheduledBlend as ScheduledBlend,
    SFTDataset as SFTDataset,
    WindowDataset as WindowDataset,
)
from headrace.errors import (
    ConfigError as ConfigError,
    HeadraceError as HeadraceError,
    InputError as InputError,
    StateError as StateError,
    StoreError as StoreError,
    WorkerError as WorkerError,
)
from headrace.integrations.exact import exact as exact
from headrace.integrations.numpy import NumpyLoader as NumpyLoader
from headrace.io import Storage as Storage
from headrace.loader import (
    DataLoader as DataLoader,
    Dealing as Dealing,
    Loader as Loader,
    Metrics as Metrics,
    Prompts as Prompts,
    loader_for as loader_for,
)
from headrace.plan import BatchSchedule as BatchSchedule, Order as Order
from headrace.plan.packing import Packing as Packing
from headrace.preparing import prepare as prepare
from headrace.stores import open as open, to_datasets as to_datasets
