"""Map-style datasets over stores, blends of them, and the run that decides what each step is fed. No torch.

    Store --> WindowDataset ---------+
    Store --> PackedSequenceDataset -+--> Blend --> Run: step N -> positions -> (source, epoch, sample) -> NumPy batch
    Store --> SFTDataset, PreferenceDataset, GroupDataset, PromptDataset: records, padded batch by batch --> the same
    SampleStore --> MediaDataset: images, video, text, decoded and cooked --> the same

May import: stores, cache, plan, samples, encoders, errors.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
