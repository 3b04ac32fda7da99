"""Tokeniser libraries with a common interface, and the proof that a fast library needs before it is used.

    tokenizer.json -> tokenizer ..... what the file holds, and the features that it asks for
                   -> reference ..... `tokenizers`
                   -> special ....... texts that hold an added token, which may have to go to `tokenizers`
                   -> libraries ..... fastokens, which refuses at once what it does not support
                   -> comparison .... the first difference between two libraries; encodes in a worker, and compares a
                                      sample with `tokenizers`
                   -> proof ......... probes libraries on fixed texts, and chooses the one to use

Optional libraries are imported where they are used, never at the top of a module.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
