"""Datasets of multi-modal samples: a store of named parts, read, decoded and cooked batch by batch. No torch.

SampleStore --read, only the parts needed--> SampleMapper --> sample, or crude --Cooker--> sample
several, by a join index -----------------> one sample each --joiner--> sample
FileStore: other files by name, for cookers; CachePool hands them out, NoCachePool reads them when they are used
samples --collate--> name -> array or list, for Run and Loader
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
