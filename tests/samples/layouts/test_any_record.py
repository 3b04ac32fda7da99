"""Whatever JSON a record is: it becomes a sample, or it is refused with a message. Nothing else is raised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError, InputError
from headrace.samples import Conversation
from headrace.samples.layouts import LAYOUTS, InputSpec, make_layout, recognise

BESIDE = ("system", "tools", "chat_template_kwargs", "unmask", "prompt", "input", "history")
FIELDS = sorted({*BESIDE, *(field for layout in LAYOUTS.values() for field in layout.required)})
KEYS = ["role", "from", "content", "value", "train", "weight", "train_detail", "tool_calls", "type", "text", "name"]
ROLES = ["user", "assistant", "human", "gpt", "function_call"]
WORDS = [*ROLES, "", "Hi", '{"name": "f", "arguments": {}}', "[]", "\ud800"]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=3)
messages = st.dictionaries(st.sampled_from(KEYS), scalars, max_size=4)
turns = st.lists(messages | scalars, max_size=3)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def near_records(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A record with the fields of a layout, most of them of kinds that occur."""
    layout = LAYOUTS[name]
    record = {field: draw(anything | turns | st.lists(messages, max_size=3)) for field in layout.required}
    for field in BESIDE:
        if field not in record and draw(st.booleans()):
            record[field] = draw(anything)
    return record


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=cases(24, 2000), deadline=None)
@given(st.data())
def test_a_record_converts_or_is_refused(name: str, data: st.DataObject) -> None:
    record = data.draw(near_records(name))
    layout = make_layout(name, InputSpec(parts=data.draw(st.sampled_from(["keep", "join"]))))
    layout.fits(record)
    try:
        found = layout.convert(record)
    except InputError:
        return
    assert isinstance(found, layout.makes)
    if isinstance(found, Conversation):
        assert len(found.train) in (0, len(found.messages))
        assert len(found.train_spans) in (0, len(found.messages))
        assert all(isinstance(message["role"], str) for message in found.messages)
        for message, spans in zip(found.messages, found.train_spans, strict=False):
            assert all(0 <= span.begin < span.end <= len(message["content"]) for span in spans)


@settings(max_examples=cases(20, 2000), deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), anything | turns, max_size=5), max_size=3))
def test_records_are_recognised_or_refused(records: list[dict[str, Any]]) -> None:
    try:
        found = recognise(records)
    except ConfigError:
        return
    assert all(make_layout(found.layout).fits(record) for record in records)
