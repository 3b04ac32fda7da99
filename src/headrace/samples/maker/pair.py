"""Type dpo: a chosen and a rejected answer to one prompt."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Preference
from headrace.samples.maker.sequences import Asked, Found, Tally
from headrace.samples.maker.shape import Document, Shape, pair_text, roles_of, with_answer


class PairShape(Shape[Preference]):
    """``chosen``, ``chosen_mask``, ``rejected``, ``rejected_mask``: each the prompt and an answer, which is trained."""

    def ask(self, sample: Preference, tally: Tally) -> list[Asked]:
        """See `Shape.ask`."""
        asked = []
        for key, answer in (("chosen", sample.chosen), ("rejected", sample.rejected)):
            prompt = sample.prompt or ""
            if isinstance(prompt, str) and isinstance(answer, str):
                asked.append(pair_text(self.tools, key, prompt, answer))
                continue
            if isinstance(prompt, str) or isinstance(answer, str):
                raise InputError(f"prompt and {key} must both be strings, or both messages")
            texts = self.tools.mark(with_answer(prompt, answer), tally)
            if len(texts) > 1:
                raise InputError(
                    f"{key} has several turns that the template writes otherwise when more follow: a pair cannot be "
                    "split; leave all but the last in the prompt, or choose `mask: {unstable: drop}`"
                )
            roles = roles_of(prompt, answer)
            asked.append(Asked(key, texts[0], self.tools.chat_ends, is_checked=True, roles=roles))
        return asked

    def documents(self, sample: Preference, found: Sequence[Found]) -> list[Document]:
        """See `Shape.documents`."""
        document: Document = {}
        for one in found:
            document |= {one.key: one.ids, f"{one.key}_mask": one.mask}
        return [document]

    def dialogue(self, sample: Preference) -> Conversation | None:
        """See `Shape.dialogue`. Both answers keep the same prompt."""
        return sample.prompt if isinstance(sample.prompt, Conversation) else None

    def conversations(self, sample: Preference) -> list[Conversation]:
        """See `Shape.conversations`."""
        prompt = sample.prompt or ""
        if isinstance(prompt, str):
            return []
        answers = (sample.chosen, sample.rejected)
        return [with_answer(prompt, answer) for answer in answers if isinstance(answer, Conversation)]

    def with_dialogue(self, sample: Preference, conversation: Conversation) -> Preference:
        """See `Shape.with_dialogue`."""
        return Preference(prompt=conversation, chosen=sample.chosen, rejected=sample.rejected)
