"""Tokeniser libraries with a common interface, and the proof that a fast library needs before it is used.

    tokenizer.json -> layout ........ the features that the file asks for
                   -> reference ..... `tokenizers`; long texts are cut where that changes no id
                   -> libraries ..... gigatoken, fastokens, tiktoken; each refuses at once what it does not support
                   -> special ....... texts that hold an added token, which may have to go to `tokenizers`
                   -> comparison .... the first difference between two libraries
                   -> proof ......... probes libraries on fixed texts, and chooses the one to use
                   -> proved ........ encodes in a worker, and compares a sample with `tokenizers`

Optional libraries are imported where they are used, never at the top of a module.
"""

from headrace.prepare.backends.backend import Backend, EncodedTexts, RefusedTextError, SpecialPolicy
from headrace.prepare.backends.comparison import Difference, OnCompared, compare
from headrace.prepare.backends.layout import UnsuitableError
from headrace.prepare.backends.proof import BACKENDS, REFERENCE, Choice, choose_backend, load_backend
from headrace.prepare.backends.proved import MismatchError, ProvedEncoder
from headrace.prepare.backends.special import SpecialFinder

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
    "load_backend",
]
