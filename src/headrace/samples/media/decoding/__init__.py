"""Decode the bytes of a part: images, video and sound, text, numbers, arrays.

    decoder   SampleDecoder: chooses the decoder by the last component of a part's name; inflates .gz first
      -> images       torch tensors, NumPy arrays, Pillow images; simplejpeg decodes JPEG if its pixels are Pillow's
      -> av_decoder   AVDecoder, which decodes video and sound when asked; av_streams reads the containers
                       with resampling, which makes any slice of resampled sound
      -> basic        txt, cls, json, msgpack, cbor, npy, npz, ten, pth; pickles are refused unless trusted

Sizes are checked before anything is allocated. Every failure is a ``DecodeError`` that names the part.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
