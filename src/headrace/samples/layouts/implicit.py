"""The prompt that a chosen and a rejected answer share, where the record does not say it."""

from __future__ import annotations

import unicodedata

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Preference
from headrace.samples.layouts.layout import cut

_JOINER = "\u200d"
_MARKS = frozenset(("Mn", "Me", "Mc"))


def split_messages(chosen: Conversation, rejected: Conversation) -> Preference:
    """The messages with which both begin are the prompt; each keeps at least one message, as TRL.

    Raises:
        InputError: they share no message, or they are the same.
    """
    if chosen.messages == rejected.messages:
        raise InputError("chosen and rejected are the same messages: there is nothing to prefer")
    shorter = min(len(chosen.messages), len(rejected.messages))
    shared = 0
    while shared < shorter - 1 and chosen.messages[shared] == rejected.messages[shared]:
        shared += 1
    if not shared:
        raise InputError(
            "chosen and rejected share no first message, so that there is no prompt: begin both with it, or give it as "
            "the field 'prompt'"
        )
    return Preference(prompt=cut(chosen, 0, shared), chosen=cut(chosen, shared), rejected=cut(rejected, shared))


def split_text(chosen: str, rejected: str) -> Preference:
    """The characters with which both begin are the prompt, without a space at its end, as TRL.

    The border is moved back where it would part what a reader sees as one character: ``e`` and its accent, the parts
    of a family or of a flag, a syllable of Hangul, CR and LF.

    >>> split_text("The sky is blue.", "The sky is black.").chosen
    'ue.'

    Raises:
        InputError: one of them is empty, or they are the same.
    """
    if chosen == rejected:
        raise InputError("chosen and rejected are the same text: there is nothing to prefer")
    if not chosen or not rejected:
        raise InputError(f"{'rejected' if chosen else 'chosen'} is empty, and there is no field 'prompt'")
    shared = _num_shared(chosen, rejected)
    is_within = shared == min(len(chosen), len(rejected))
    shared -= is_within  # the shorter one keeps a character
    if not is_within and shared and chosen[shared - 1] == " ":
        shared -= 1
    while shared and not (_is_border(chosen, shared) and _is_border(rejected, shared)):
        shared -= 1
    return Preference(prompt=chosen[:shared], chosen=chosen[shared:], rejected=rejected[shared:])


def _num_shared(left: str, right: str) -> int:
    """How many characters both begin with, in as many comparisons as the number has bits."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_border(text: str, at: int) -> bool:
    """Whether a text may be cut before character ``at``, which is not the first."""
    left, right = text[at - 1], text[at]
    if left < "\u0300" and right < "\u0300":
        return not (left == "\r" and right == "\n")
    if _JOINER in (left, right) or unicodedata.category(right) in _MARKS:
        return False
    if "\U0001f3fb" <= right <= "\U0001f3ff" or "\U000e0020" <= right <= "\U000e007f":  # colours of skin, tags of flags
        return False
    if _is_flag_letter(left) and _is_flag_letter(right):  # two make a flag: counted from where the row of them begins
        begin = at
        while begin and _is_flag_letter(text[begin - 1]):
            begin -= 1
        return (at - begin) % 2 == 0
    return not (_is_hangul(left) and ("\u1160" <= right <= "\u11ff" or "\ud7b0" <= right <= "\ud7fb"))


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _is_hangul(char: str) -> bool:
    return "\u1100" <= char <= "\u11ff" or "\uac00" <= char <= "\ud7fb" or "\ua960" <= char <= "\ua97c"
