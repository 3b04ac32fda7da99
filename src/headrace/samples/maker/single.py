"""Types seq and sft: a record is a document, of text or of a conversation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from headrace.samples.conversation import Completion, Conversation, Text
from headrace.samples.maker.sequences import Asked, Found, Tally, plain
from headrace.samples.maker.shape import Document, Shape, pair_text, roles_of, with_answer

Single = Text | Conversation | Completion


class SingleShape(Shape[Single]):
    """``tokens``; for sft also ``loss_mask`` and ``num_supervised``, for KTO ``label``."""

    def ask(self, sample: Single, tally: Tally) -> list[Asked]:
        """See `Shape.ask`. A conversation that an unstable template splits is several documents."""
        is_checked = self.tools.recipe.type == "sft"
        if isinstance(sample, Text):
            return [Asked("tokens", plain((sample.text, True)), self.tools.answer_ends, is_checked)]
        if isinstance(sample, Completion) and isinstance(sample.prompt, str) and isinstance(sample.completion, str):
            return [pair_text(self.tools, "tokens", sample.prompt, sample.completion, is_checked=is_checked)]
        conversation = self.dialogue(sample)
        if conversation is None:
            raise TypeError(f"{type(sample).__name__} is no sample of type {self.tools.recipe.type}")
        if not is_checked:  # nobody asks for a mask, so none has to be proved
            text = self.tools.whole_text(conversation, tally)
            return [Asked("tokens", plain((text, True)), self.tools.chat_ends)]
        roles = roles_of(conversation) if tally.with_all else ()
        ends = self.tools.chat_ends
        return [
            Asked("tokens", marked, ends, is_checked, roles=roles) for marked in self.tools.mark(conversation, tally)
        ]

    def documents(self, sample: Single, found: Sequence[Found]) -> list[Document]:
        """See `Shape.documents`."""
        documents = []
        for one in found:
            document: Document = {"tokens": one.ids}
            if self.tools.recipe.type == "sft":
                document["loss_mask"] = one.mask
                document["num_supervised"] = one.num_supervised
            if self.tools.recipe.output.position_ids != "none":
                document["position_ids"] = np.arange(len(one.ids), dtype=np.int64)
            if isinstance(sample, Completion) and sample.label is not None:
                document["label"] = int(sample.label)
            documents.append(document)
        return documents

    def dialogue(self, sample: Single) -> Conversation | None:
        """See `Shape.dialogue`."""
        if isinstance(sample, Completion):
            if isinstance(sample.prompt, str) or isinstance(sample.completion, str):
                return None
            return with_answer(sample.prompt, sample.completion)
        return sample if isinstance(sample, Conversation) else None

    def conversations(self, sample: Single) -> list[Conversation]:
        """See `Shape.conversations`."""
        dialogue = self.dialogue(sample)
        return [] if dialogue is None else [dialogue]

    def with_dialogue(self, sample: Single, conversation: Conversation) -> Single:
        """See `Shape.with_dialogue`."""
        if isinstance(sample, Completion):
            empty = msgspec.structs.replace(conversation, messages=[], train=(), train_spans=())
            return Completion(prompt=empty, completion=conversation, label=sample.label)
        return conversation
