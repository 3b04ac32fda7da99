"""Which messages of a conversation are trained, by roles, turns and the record's own flags."""

from __future__ import annotations

from typing import NamedTuple

from headrace.samples.conversation import Conversation, TrainSpan
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.pieces import Why


class Decision(NamedTuple):
    """Of one message."""

    is_trained: bool
    why: Why
    spans: tuple[TrainSpan, ...]
    """Of its content, laid over ``is_trained``."""

    @property
    def has_trained(self) -> bool:
        """Whether anything of the message is trained."""
        return self.is_trained or any(span.train for span in self.spans)


def decisions(conversation: Conversation, options: MaskOptions) -> list[Decision]:
    """One a message. A flag comes before the options.

    Where spans of a message say what to train and nothing else does, the rest of it is not trained; where they say
    what to leave out, the rest is as its role.
    """
    found = []
    is_last = True
    for message in range(len(conversation.messages) - 1, -1, -1):
        spans = conversation.train_spans[message] if conversation.train_spans else ()
        flag = conversation.train[message] if conversation.train else None
        has_role = conversation.messages[message].get("role") in options.roles
        if flag is not None:
            found.append(Decision(flag, Why.FLAG, spans))
        elif options.train_on_prompt:
            found.append(Decision(True, Why.TRAIN_ON_PROMPT, spans))
        elif not has_role:
            found.append(Decision(False, Why.ROLE, spans))
        elif options.turns == "last" and not is_last:
            found.append(Decision(False, Why.TURNS, spans))
        else:
            chosen = any(span.train for span in spans)
            found.append(Decision(not chosen, Why.SPAN if chosen else Why.ROLE, spans))
        is_last = is_last and not has_role
    return found[::-1]
