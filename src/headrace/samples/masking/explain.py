"""What the errors of marking say."""

from __future__ import annotations

from headrace.samples.masking.renders import Renders
from headrace.samples.masking.turns import Fault, Turn


def _named(renders: Renders, message: int) -> str:
    return f"message {message} ({renders.conversation.messages[message].get('role')})"


def history(renders: Renders, fault: Fault) -> str:
    """A turn is written otherwise when more follows."""
    return (
        f"the template writes {_named(renders, fault.message)} otherwise when more messages follow, so that a model "
        f"would be trained on a text that it never sees when it writes: {fault.text}. Thinking that is stripped from "
        "earlier turns is the usual reason. Choose unstable: split (samples that show each turn as it was written), "
        "last_turn or drop, or a template that keeps what it wrote"
    )


def prompt(renders: Renders, fault: Fault) -> str:
    """A turn does not begin with the generation prompt."""
    return (
        f"the template's generation prompt is not how it writes {_named(renders, fault.message)}: {fault.text}. A "
        "model would be asked to go on from a text that it was not trained on. Give the template the arguments or "
        "the reasoning that belong together, or choose on_prompt_mismatch: allow or drop"
    )


def untrained_end(renders: Renders, turn: Turn, text: str) -> str:
    """There is no token to end a turn with."""
    found = text[max(turn.stop - 30, 0) : turn.stop]
    return (
        f"{_named(renders, turn.message)} ends without a special token ({found!r}), or with one of which nothing shows "
        "that it ends the turn, so that a model is never taught to stop: use a template or tokeniser that has one, "
        "name it (eos_token of the tokeniser, `ends: {eos: TOKEN}` of a recipe), or choose on_untrained_end: allow "
        "or drop"
    )


def empty_turn(renders: Renders, message: int) -> str:
    """A trained turn without content."""
    calls = renders.conversation.messages[message].get("tool_calls")
    what = "says nothing and has calls of tools, which the template does not write" if calls else "says nothing"
    return (
        f"{_named(renders, message)} is trained and {what}: a model would learn to stop at once. Use a template that "
        "writes it, take the message out, or choose on_empty_turn: allow or drop"
    )


def unwritten(renders: Renders, message: int) -> str:
    """A message that the template leaves out."""
    content = renders.conversation.messages[message].get("content")
    return (
        f"the template writes nothing of {_named(renders, message)}, which says {str(content)[:60]!r}: the model would "
        "never see it. Give it a role or a form that the template writes (`roles` renames roles, `parts: join` "
        "makes one text of parts), use another template, or choose on_unwritten_message: allow or drop"
    )


def no_block(renders: Renders, message: int) -> str:
    """A message without its generation block."""
    return (
        f"the template has generation blocks, and rendered none for {_named(renders, message)}, which should be "
        "trained: choose generation_tags: ignore, or trusted to leave such messages out"
    )


def spans(renders: Renders, message: int) -> str:
    """Spans of a content that cannot be placed."""
    content = renders.conversation.messages[message].get("content")
    return (
        f"{_named(renders, message)} has spans to train, and the template does not write its content as it is "
        f"({content!r:.60}), so that they cannot be placed: take them off, or use a template that writes it as it is"
    )
