"""Task encoders: the user's hooks that cook, encode, pack, group and batch samples, and the code that calls them.

sample --[cook]--> [encode | preencode] --> 0..n outputs        EncoderPipeline.encode
outputs --select_samples_to_pack--> [postencode] --> pack       EncoderPipeline.select, pack
outputs or packs --batch_group_criterion--> key, size           EncoderPipeline.group
outputs or packs --batch--> [encode_batch] --> batches          EncoderPipeline.batch

    stateless         what a hook promises: that it can be called again, and which random numbers it draws
    SavedGenerators   the global random generators, seeded for a call and restored afterwards
    ErrorPolicy       which faults of a sample are raised, and which are resolved by another sample

The names that users of Energon import with their task encoders are here too: samples, batches, cookers. A pipeline
knows neither stores nor order; the datasets call it with a key and a position. Nothing here imports torch.

May import: samples, plan, io, errors.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
