"""``instruction``, ``input`` and ``output``: one task, as Alpaca writes it, with LLaMA-Factory's additions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Message
from headrace.samples.layouts.fields import describe
from headrace.samples.layouts.layout import Layout, assistant, join, user


class TaskLayout(Layout):
    """An ``instruction``, its ``input``, and what is answered.

    Instruction and input are one message of the user, the input on a line of its own, as LLaMA-Factory. ``history`` is
    a list of pairs, what was said and answered before.
    """

    optional = ("input", "system", "history", "tools", "chat_template_kwargs")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether all are strings."""
        return self.is_text(record, *self.required)

    def task(self, record: Mapping[str, Any]) -> Conversation:
        """What comes before the answer: the history, then instruction and input.

        Raises:
            InputError: a field is missing or of another kind.
        """
        instruction = self.fields.text(record, "instruction")
        given = self.fields.optional_text(record, "input")
        return join(
            self._history(record), user(f"{instruction}\n{given}" if instruction and given else instruction or given)
        )

    def _history(self, record: Mapping[str, Any]) -> Conversation:
        messages: list[Message] = []
        for number, pair in enumerate(self.fields.parsed(record, "history", list) or ()):
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(side, str) for side in pair):
                raise InputError(
                    f"{self.fields.name('history')}[{number}] is {describe(pair)}; allowed is a list of two strings, "
                    "what the user said and what was answered"
                )
            messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
        return Conversation(messages=messages)


class AlpacaLayout(TaskLayout):
    """``{"instruction": "...", "input": "...", "output": "..."}``; ``system`` and ``history`` may be there."""

    name = "alpaca"
    says = "instruction, input, output: one task and its answer"
    makes = Conversation
    required = ("instruction", "output")

    def convert(self, record: Mapping[str, Any]) -> Conversation:
        """See `Layout.convert`."""
        return self.complete(record, join(self.task(record), assistant(self.fields.text(record, "output"))))
