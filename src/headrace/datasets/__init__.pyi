from headrace.datasets.accounts import (
    check_supervised as check_supervised,
    count_samples as count_samples,
    count_step as count_step,
)
from headrace.datasets.blend import Blend as Blend, ScheduledBlend as ScheduledBlend, Stage as Stage
from headrace.datasets.dataset import (
    CountedDataset as CountedDataset,
    Counts as Counts,
    Dataset as Dataset,
    Fields as Fields,
    FixedDataset as FixedDataset,
    RaggedDataset as RaggedDataset,
    Sample as Sample,
    Traits as Traits,
)
from headrace.datasets.encoded import (
    EncodedDataset as EncodedDataset,
    Framed as Framed,
    FramedRun as FramedRun,
    MeasuredDataset as MeasuredDataset,
)
from headrace.datasets.exclusions import Exclude as Exclude
from headrace.datasets.lengths import (
    Concat as Concat,
    FilledDataset as FilledDataset,
    Limit as Limit,
    Repeat as Repeat,
    Subset as Subset,
)
from headrace.datasets.map_style import MapStyleDataset as MapStyleDataset
from headrace.datasets.mapped import MapDataset as MapDataset
from headrace.datasets.measuring import MeasuredFacts as MeasuredFacts, measure as measure
from headrace.datasets.media import JoinedMediaDataset as JoinedMediaDataset, MediaDataset as MediaDataset
from headrace.datasets.mix import Mix as Mix
from headrace.datasets.packed_sequences import PackedSequenceDataset as PackedSequenceDataset
from headrace.datasets.records import Collation as Collation, RecordDataset as RecordDataset, SFTDataset as SFTDataset
from headrace.datasets.rl_records import (
    GroupDataset as GroupDataset,
    PreferenceDataset as PreferenceDataset,
    PromptDataset as PromptDataset,
)
from headrace.datasets.run import Located as Located, Run as Run
from headrace.datasets.windows import WindowDataset as WindowDataset
