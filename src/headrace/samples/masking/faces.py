"""What masking needs of others: a template that renders, and a tokeniser that encodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace.samples.conversation import Conversation
from headrace.samples.templates.rendered import Rendered


class Template(Protocol):
    """A chat template; `headrace.samples.templates.ChatTemplate` is one."""

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """``bos_token``, ``eos_token`` and the like, by name."""

    @property
    def end_of_turn(self) -> str | None:
        """The text that ends an assistant's turn, where it is known."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        **template_kwargs: Any,
    ) -> Rendered:
        """The text of the messages. Raises :class:`InputError` where the template refuses them."""


@runtime_checkable
class RendersAhead(Protocol):
    """A template that renders many conversations for less than one by one, such as `ChatTemplate`."""

    def render_ahead(self, conversations: Iterable[Conversation], *, prompts: bool = True) -> None:
        """Render what masking will ask for of these conversations."""


class TextEncoder(Protocol):
    """A tokeniser, as `headrace.prepare.backends` has them."""

    def encode(self, texts: list[str], /) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """All ids of all texts in a row, and the number of tokens of each text."""
