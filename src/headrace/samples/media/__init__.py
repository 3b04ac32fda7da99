"""Multi-modal samples: types, field maps, decoders and cookers. Codecs are imported when they are first used.

    raw parts {"jpg": b"...", "txt": b"..."}
      -> mapper         a field map says which part, and what within it, becomes which field
      -> decoding       SampleDecoder decodes bytes to an image, text, an AVDecoder or arrays
                        SampleMapper does both                        -> Sample, or CrudeSample
      -> cooking        the user's function cooks crude samples       -> Sample
      -> batch          Batch.from_samples pads and stacks samples    -> Batch

The room knows no files and no stores. May import: headrace.errors.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
