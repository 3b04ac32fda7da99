from headrace.compat.megatron.blend import (
    CyclicDataset as CyclicDataset,
    GPTBlend as GPTBlend,
    MockGPTDataset as MockGPTDataset,
    MockStore as MockStore,
)
from headrace.compat.megatron.caches import ExportedCache as ExportedCache, export_cache as export_cache
from headrace.compat.megatron.gpt import GPTDataset as GPTDataset, GPTFIMDataset as GPTFIMDataset, GPTMasks as GPTMasks
from headrace.compat.megatron.indexed_dataset import (
    IndexedDataset as IndexedDataset,
    IndexedDatasetBuilder as IndexedDatasetBuilder,
)
from headrace.plan.megatron import FillInTheMiddle as FillInTheMiddle, FIMTokens as FIMTokens, TextCodec as TextCodec
