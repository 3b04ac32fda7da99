"""Which faults another sample makes good, how they are counted, and which sample it is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace import ConfigError, StoreError
from headrace.encoders import ErrorPolicy, Fault, FaultLog, SkipSample, is_of_sample
from headrace.encoders.faults import KEPT, PROGRAMMING, UNBOUNDED
from headrace.errors import DecodeError, FieldAccessError, InputError, SampleError
from headrace.plan.keys import substitute_index

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
