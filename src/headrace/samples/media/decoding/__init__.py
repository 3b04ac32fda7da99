"""Bytes of a part -> a value: images, video and sound, text, numbers, arrays.

    SampleDecoder       the last component of a part's name -> what decodes it
      -> inflating      .gz first, bounded
      -> images, jpeg   torch tensors, NumPy arrays, Pillow images; JPEG by simplejpeg where its pixels are Pillow's
      -> av             AVDecoder, lazy
      -> basic, arrays  txt, cls, json, msgpack, cbor, npy, npz, ten; pickles are refused unless trusted

Sizes are checked before anything is allocated. Whatever fails is a ``DecodeError`` that names the part.
"""

from __future__ import annotations

from headrace.samples.media.decoding.decoder import SampleDecoder

__all__ = ["SampleDecoder"]
