"""Which hooks are taken, what the encoders that are there do, and the policy for samples that fail."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace import ConfigError, StoreError
from headrace.encoders import (
    EncoderPipeline,
    ErrorPolicy,
    Fault,
    FaultLog,
    SkipSample,
    TaskEncoder,
    batch_list,
    batch_stack,
    edataclass,
    hook_of,
    is_of_sample,
    stateless,
)
from headrace.encoders.faults import KEPT, PROGRAMMING, UNBOUNDED
from headrace.encoders.pipeline import HookFailure, Output
from headrace.encoders.task_encoder import AugmentTaskEncoder, CallKey, DefaultTaskEncoder, encoder_recipe
from headrace.errors import DecodeError, FieldAccessError, InputError, SampleError
from headrace.plan.keys import substitute_index
from headrace.samples.media import Batch, TextSample


def text(number: int) -> TextSample:
    return TextSample(__key__=f"{number}", __restore_key__=(number,), text="x" * number)


class Pair(NamedTuple):
    text: str
    size: int = 2


@dataclass
class Only:
    text: str


@edataclass
class TextBatch(Batch):
    text: list[str]


@pytest.mark.parametrize(
    ("kind", "wanted"), [(Pair, Pair("xx", 2)), (Only, Only("xx")), (TextSample, text(2)), (None, text(2))]
)
def test_default_maps_samples_by_names(kind: type[Any] | None, wanted: Any) -> None:
    assert DefaultTaskEncoder(encoded_sample_type=kind).encode_sample(text(2)) == wanted


def test_default_maps_to_and_from_dicts() -> None:
    found = DefaultTaskEncoder(encoded_sample_type=dict).encode_sample(text(1))
    assert found["text"] == "x"
    assert found["__key__"] == "1"
    assert DefaultTaskEncoder(encoded_sample_type=Only).encode_sample(found) == Only("x")
    assert DefaultTaskEncoder(encoded_sample_type=Pair).encode_sample({"text": "y", "size": 1}) == Pair("y", 1)


def test_default_batches() -> None:
    encoder = DefaultTaskEncoder(raw_batch_type=TextBatch, batch_type=dict)
    raw = encoder.batch([text(1), text(2)])
    assert raw == TextBatch(__key__=["1", "2"], __restore_key__=[(1,), (2,)], text=["x", "xx"])
    assert encoder.encode_batch(raw)["text"] == ["x", "xx"]
    assert DefaultTaskEncoder().encode_batch(raw) is raw
    plain = TaskEncoder().batch([text(1), text(2)])
    assert isinstance(plain, TextSample)
    assert plain.text == ["x", "xx"]  # type: ignore[comparison-overlap]


def test_default_batches_pad() -> None:
    found = DefaultTaskEncoder().batch([{"a": np.ones(1), "b": "x"}, {"a": np.ones(3), "b": "y"}])
    assert np.array_equal(found["a"], [[1, 0, 0], [1, 1, 1]])
    assert found["b"] == ["x", "y"]
    assert np.array_equal(DefaultTaskEncoder().batch([np.ones(1), np.ones(2)]), [[1, 0], [1, 1]])
    told = [{"__subflavors__": {"of": number}, "a": {"of": number}} for number in (1, 2)]
    assert DefaultTaskEncoder().batch(told) == {"__subflavors__": [{"of": 1}, {"of": 2}], "a": {"of": [1, 2]}}
    assert batch_list((1, 2)) == [1, 2]
    assert batch_stack([np.ones(2), np.zeros(2)]).shape == (2, 2)
    with pytest.raises(ConfigError, match=r"1.*2.*batch_pad_stack"):
        batch_stack([np.ones(1), np.ones(2)])


def test_default_says_what_does_not_fit() -> None:
    for kind, sample, named in ((Pair, {"caption": "x"}, "caption"), (Pair, 3, "fields"), (int, {"a": 1}, "dataclass")):
        with pytest.raises(ConfigError, match=named):
            DefaultTaskEncoder(encoded_sample_type=kind).encode_sample(sample)
    for samples, named in (
        ([{"__key__": "1"}, {}], r"'1'.*'without.*key'"),
        ([{"a": np.ones(1)}, {"a": np.ones((1, 1))}], "'a'"),
    ):
        with pytest.raises(ConfigError, match=named):
            DefaultTaskEncoder().batch(samples)


class Longer(TaskEncoder[Any, Any, Any, Any]):
    version = "7"

    @stateless(restore_seeds=True, failure_tolerance=3)
    def encode_sample(self, sample: TextSample) -> TextSample:
        return TextSample.derive_from(sample, text=sample.text + "!")

    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return "".join(sample.text for sample in samples)


class Twice(AugmentTaskEncoder[Any, Any, Any, Any]):
    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return [super().batch(samples)] * 2


def test_augment_hands_on_every_hook_with_its_promise() -> None:
    encoder = Twice(AugmentTaskEncoder(Longer()))
    pipeline = EncoderPipeline(encoder, packing=True)
    used = ["select_samples_to_pack", "batch", "encode_sample", "pack_selected_samples"]
    assert [hook.name for hook in pipeline.used] == used
    found = hook_of(encoder, "encode_sample")
    assert (found.stateless, found.may_draw, found.failure_tolerance) == (True, True, 3)
    assert encoder.version == "7"
    [one] = pipeline.encode(lambda: text(1), CallKey(1, 0))
    assert one.sample.text == "x!"
    assert pipeline.pack([one, one])[0].sample == "x!x!"
    assert pipeline.batch([one.sample], CallKey(1, 0))[0][1].text == ["x!"]
    assert not AugmentTaskEncoder(TaskEncoder()).cookers
    assert encoder_recipe(encoder)["within"]["within"]["version"] == "7"


def test_augment_delegates_when_it_is_called() -> None:
    encoder: Any = AugmentTaskEncoder(Longer())
    assert encoder.encode_sample(text(1)).text == "x!"
    assert encoder.pack_selected_samples(encoder.select_samples_to_pack([text(1)])[0]) == "x"
    assert encoder.preencode_sample(1) == encoder.postencode_sample(1) == encoder.encode_batch(1) == 1
    with pytest.raises(ConfigError, match="batch_group_criterion"):
        encoder.batch_group_criterion(1)


def encoder_with(**hooks: Any) -> Any:
    """A task encoder that has functions for some of its hooks."""
    return type("Own", (TaskEncoder,), hooks)()


@pytest.mark.parametrize(
    ("encoder", "options", "named"),
    [
        (encoder_with(encode_sample=len, preencode_sample=len), {}, r"encode_sample.*preencode_sample"),
        (encoder_with(select_samples_to_pack=list), {}, "select_samples_to_pack"),
        (encoder_with(postencode_sample=lambda self, sample: (yield sample)), {}, "postencode_sample"),
        (TaskEncoder, {}, "TaskEncoder"),
        (TaskEncoder(), {"packing": True}, "select_samples_to_pack"),
        (TaskEncoder(), {"batch_size": 0}, r"batch_size.*0"),
    ],
)
def test_impossible_encoders_and_options_are_refused_at_once(encoder: Any, options: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        EncoderPipeline(encoder, **options)


def test_preencode_beside_the_default_mapping() -> None:
    hooks = {"preencode_sample": lambda self, sample: sample + 1, "postencode_sample": lambda self, sample: sample * 10}
    encoder = type("Before", (DefaultTaskEncoder,), hooks)()
    [one] = EncoderPipeline(encoder).encode(lambda: 1, CallKey(1, 0))
    assert one == Output(CallKey(1, 0), 20)


def test_what_is_known_within_hooks_only() -> None:
    encoder = TaskEncoder[Any, Any, Any, Any]()
    for name in ("current_sample_index", "current_batch_index", "current_seed"):
        with pytest.raises(ConfigError, match=rf"{name}"):
            getattr(encoder, name)

    def of_sample(self: Any, sample: Any) -> Any:
        return self.current_sample_index, self.current_seed

    def of_batch(self: Any, samples: list[Any]) -> Any:
        return self.current_sample_index, self.current_batch_index

    pipeline = EncoderPipeline(encoder_with(encode_sample=of_sample, batch=of_batch))
    assert pipeline.encode(lambda: None, CallKey(1, 5))[0].sample[0] == 5
    assert pipeline.batch([1], CallKey(1, 5)) == [(5, 5)]
    with pytest.raises(HookFailure) as found:
        EncoderPipeline(encoder_with(encode_sample=of_batch)).encode(lambda: None, CallKey(1, 5))
    assert "use current_sample_index" in str(found.value.error)


OF_SAMPLES = [SampleError(None, ""), DecodeError("", ""), FieldAccessError("", ""), SkipSample()]
OF_HOOKS = [ValueError(), KeyError(), AssertionError(), ZeroDivisionError(), RuntimeError()]
OF_OTHERS = [
    *(kind() for kind in PROGRAMMING),
    *(kind() for kind in (OSError, TimeoutError, ConnectionResetError, StoreError, ConfigError, InputError)),
    *(kind() for kind in (ModuleNotFoundError, UnboundLocalError, KeyboardInterrupt, SystemExit, GeneratorExit)),
]


@pytest.mark.parametrize("error", [*OF_SAMPLES, *OF_HOOKS, *OF_OTHERS], ids=repr)
def test_which_errors_are_of_the_sample(error: BaseException) -> None:
    """Those of hooks are where the hook has no state."""
    assert is_of_sample(error, stateless=False) == (error in OF_SAMPLES)
    assert is_of_sample(error, stateless=True) == (error not in OF_OTHERS)


def test_policy_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"on_error.*'skip'"):
        ErrorPolicy(on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"tolerance.*0"):
        ErrorPolicy(tolerance=0)
    assert [ErrorPolicy(tolerance=9).bound(own) for own in (None, 3, 30, 0)] == [9, 3, 30, UNBOUNDED]


def fault(index: int, kind: str = "DecodeError") -> Fault:
    place: dict[str, Any] = {"shard": None, "key": None, "address": 0, "attempt": 0}
    return Fault(source="a", index=index, hook="read", kind=kind, reason="", **place)


def test_log_counts_all_and_keeps_some() -> None:
    log, other = FaultLog(), FaultLog()
    for index in range(KEPT + 5):
        log.add(fault(index))
    other.add(fault(1, "KeyError"))
    other.merge(log)
    assert (log.total, len(log.faults), other.total, len(other.faults)) == (KEPT + 5, KEPT, KEPT + 6, KEPT)
    assert json.loads(json.dumps(other.summary())) == {
        "total": KEPT + 6,
        "counts": [
            {"source": "a", "hook": "read", "kind": "DecodeError", "count": KEPT + 5},
            {"source": "a", "hook": "read", "kind": "KeyError", "count": 1},
        ],
    }
    assert repr(other) == f"<FaultLog: {KEPT + 6:,} faults>"


@given(
    key=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**63 - 1),
    attempt=st.integers(1, 10_000),
    num_samples=st.sampled_from([1, 2, 2**31 - 1, 2**31, 2**32 + 1, 2**41]),
)
def test_in_bounds_and_pure(key: int, position: int, attempt: int, num_samples: int) -> None:
    found = substitute_index(key, position, attempt, num_samples)
    assert 0 <= found < num_samples
    assert found == substitute_index(key, position, attempt, num_samples)


def test_even_and_of_all_arguments() -> None:
    found = [substitute_index(9, position, 1, 10) for position in range(10_000)]
    counts = np.bincount(found, minlength=10)
    assert abs(counts - 1000).max() < 150  # five standard deviations
    others = (
        [substitute_index(8, position, 1, 10) for position in range(10_000)],
        [substitute_index(9, position, 2, 10) for position in range(10_000)],
        found[1:] + found[:1],
    )
    for other in others:
        assert 850 < sum(one == two for one, two in zip(found, other, strict=True)) < 1150


def test_golden() -> None:
    assert [substitute_index(1, 2, attempt, 1000) for attempt in (1, 2, 3)] == [412, 679, 845]


@pytest.mark.parametrize(("position", "attempt", "num_samples"), [(-1, 1, 3), (0, 0, 3), (0, 1, 0)])
def test_refused(position: int, attempt: int, num_samples: int) -> None:
    with pytest.raises(ConfigError, match=r"attempts.*1"):
        substitute_index(1, position, attempt, num_samples)
