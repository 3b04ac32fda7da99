"""Tokeniser libraries with a common interface, and the proof that a fast library needs before it is used.

    tokenizer.json -> tokenizer ..... what the file holds, and the features that it asks for
                   -> reference ..... `tokenizers`; long texts are cut where that changes no id
                   -> special ....... texts that hold an added token, which may have to go to `tokenizers`
                   -> libraries ..... gigatoken, fastokens; each refuses at once what it does not support
                   -> comparison .... the first difference between two libraries; encodes in a worker, and compares a
                                      sample with `tokenizers`
                   -> proof ......... probes libraries on fixed texts, and chooses the one to use

Optional libraries are imported where they are used, never at the top of a module.
"""

from headrace.preparing.backends.backend import Backend, EncodedTexts, RefusedTextError, SpecialPolicy
from headrace.preparing.backends.comparison import Difference, MismatchError, OnCompared, ProvedEncoder, compare
from headrace.preparing.backends.libraries import BACKENDS, REFERENCE
from headrace.preparing.backends.proof import Choice, choose_backend
from headrace.preparing.backends.special import SpecialFinder
from headrace.preparing.backends.tokenizer import UnsuitableError

__all__ = [
    "BACKENDS",
    "REFERENCE",
    "Backend",
    "Choice",
    "Difference",
    "EncodedTexts",
    "MismatchError",
    "OnCompared",
    "ProvedEncoder",
    "RefusedTextError",
    "SpecialFinder",
    "SpecialPolicy",
    "UnsuitableError",
    "choose_backend",
    "compare",
]
