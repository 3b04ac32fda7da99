"""Tokeniser libraries behind one face, and the proof without which only `tokenizers` is used.

    tokenizer.json -> layout ........ what the file asks for
                   -> reference ......... `tokenizers`; long texts are cut where that changes no id (long_texts)
                   -> gigatoken, fastokens, tiktoken ... refuse at once what they do not have
                   -> probe ......... texts of all scripts and of the whole vocabulary
                   -> kept_probes ... what came of it, kept in the cache folder
                   -> proof ......... which library may be used, and why not the others
                   -> proved ........ encodes in a worker; a sampled share of the texts twice

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
