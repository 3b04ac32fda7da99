"""Types prompt and grpo: what is to be answered; what was answered before, with its rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Group, Prompt
from headrace.samples.maker.sequences import Asked, Found, Tally, plain
from headrace.samples.maker.shape import Document, Shape, Tools, columns_bytes, roles_of, with_answer
from headrace.samples.masking.marking import Marked, decide
from headrace.samples.masking.pieces import Region
from headrace.samples.masking.results import PROMPT_MISMATCH


class PromptShape(Shape[Prompt]):
    """``prompts``, up to where the answer begins, and ``columns``, the record's other fields as the bytes of JSON."""

    def ask(self, sample: Prompt, tally: Tally) -> list[Asked]:
        """See `Shape.ask`."""
        return [prompt_asked(self.tools, sample.prompt, tally)]

    def documents(self, sample: Prompt, found: Sequence[Found]) -> list[Document]:
        """See `Shape.documents`."""
        return [{"prompts": found[0].ids, "columns": columns_bytes(sample.columns)}]


class GroupShape(Shape[Group]):
    """``prompts``; ``responses``, one after another, their ``masks`` and ``response_lengths``; ``rewards``.

    Prompt and response are encoded as one text, and parted where the response begins.
    """

    def ask(self, sample: Group, tally: Tally) -> list[Asked]:
        """See `Shape.ask`."""
        prompt = prompt_asked(self.tools, sample.prompt, Tally())  # counted with each response
        return [prompt, *(self._response(sample.prompt, prompt.marked.text, one, tally) for one in sample.responses)]

    def conversations(self, sample: Group) -> list[Conversation]:
        """See `Shape.conversations`."""
        prompt = sample.prompt
        if isinstance(prompt, str):
            return []
        return [with_answer(prompt, one) for one in sample.responses if isinstance(one, Conversation)]

    def documents(self, sample: Group, found: Sequence[Found]) -> list[Document]:
        """See `Shape.documents`."""
        prompt, *responses = found
        return [
            {
                "prompts": prompt.ids,
                "responses": np.concatenate([one.ids for one in responses]),
                "masks": np.concatenate([one.mask for one in responses]),
                "response_lengths": np.array([len(one.ids) for one in responses], np.int32),
                "rewards": np.array(sample.rewards, np.float64),
            }
        ]

    def _response(self, prompt: Conversation | str, before: str, response: Conversation | str, tally: Tally) -> Asked:
        if isinstance(prompt, str) and isinstance(response, str):
            ends = self.tools.answer_ends._replace(before=np.zeros(0, np.uint32))
            text = plain((prompt, False), (response, True))
            return Asked("responses", text, ends, begin=len(prompt), roles=("prompt", "answer"), may_be_empty=True)
        if isinstance(prompt, str) or isinstance(response, str):
            raise InputError("prompt and responses must all be strings, or all messages")
        texts = self.tools.mark(with_answer(prompt, response), tally)
        if len(texts) > 1:
            raise InputError("a response has several turns that the template writes otherwise when more follow")
        marked = texts[0]
        if not marked.text.startswith(before):
            decide(
                "drop" if self.tools.recipe.mask.on_prompt_mismatch == "drop" else "error",
                PROMPT_MISMATCH,
                "the text of prompt and response does not begin with that of the prompt and the template's generation "
                "prompt, so that it cannot be said where the response begins; choose `mask: {on_prompt_mismatch: "
                "drop}`, or give the template the arguments that belong together",
                tally.notes,
            )
        end = None
        if self.tools.recipe.ends.response_end == "turn":
            end = _end_of_turn(marked, len(prompt.messages) + len(response.messages) - 1)
        roles = roles_of(prompt, response)
        return Asked("responses", marked, is_checked=True, begin=len(before), end=end, roles=roles)


def prompt_asked(tools: Tools, prompt: Conversation | str, tally: Tally) -> Asked:
    """The sequence of a prompt; that of a conversation ends where the assistant's answer begins."""
    if isinstance(prompt, str):
        text, ends = prompt, tools.text_ends(is_trained=False)
    else:
        text, ends = tools.prompt_text(prompt, tally), tools.chat_ends
    return Asked("prompts", plain((text, False)), ends._replace(after=np.zeros(0, np.uint32)))


def _end_of_turn(marked: Marked, message: int) -> int | None:
    """Behind the token that ends the turn of a message; None where there is none."""
    ends = [piece.end for piece in marked.pieces if piece.region == Region.END_OF_TURN and piece.message == message]
    return ends[-1] if ends else None
