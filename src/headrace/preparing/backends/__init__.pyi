from headrace.preparing.backends.comparison import (
    Difference as Difference,
    MismatchError as MismatchError,
    OnCompared as OnCompared,
    ProvedEncoder as ProvedEncoder,
    compare as compare,
)
from headrace.preparing.backends.libraries import BACKENDS as BACKENDS, REFERENCE as REFERENCE
from headrace.preparing.backends.proof import Choice as Choice, choose_backend as choose_backend
from headrace.preparing.backends.reference import (
    Backend as Backend,
    EncodedTexts as EncodedTexts,
    RefusedTextError as RefusedTextError,
    SpecialPolicy as SpecialPolicy,
)
from headrace.preparing.backends.special import SpecialFinder as SpecialFinder
from headrace.preparing.backends.tokenizer import UnsuitableError as UnsuitableError
