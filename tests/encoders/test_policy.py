"""Which faults another sample makes good, and how they are counted."""

from __future__ import annotations

import json

import pytest

from headrace import ConfigError, StoreError
from headrace.encoders import ErrorPolicy, Fault, FaultLog, SkipSample, is_of_sample
from headrace.encoders.faults import KEPT, PROGRAMMING, UNBOUNDED
from headrace.errors import DecodeError, FieldAccessError, InputError, SampleError


@pytest.mark.parametrize("error", [SampleError(None, ""), DecodeError("", ""), FieldAccessError("", ""), SkipSample()])
def test_errors_of_samples(error: Exception) -> None:
    assert is_of_sample(error, stateless=False)
    assert is_of_sample(error, stateless=True)


@pytest.mark.parametrize("error", [ValueError(), KeyError(), AssertionError(), ZeroDivisionError(), RuntimeError()])
def test_errors_of_hooks_are_of_the_sample_where_the_hook_has_no_state(error: Exception) -> None:
    assert is_of_sample(error, stateless=True)
    assert not is_of_sample(error, stateless=False)


@pytest.mark.parametrize(
    "error",
    [kind() for kind in PROGRAMMING]
    + [
        OSError(),
        TimeoutError(),
        ConnectionResetError(),
        StoreError(),
        ConfigError(),
        InputError(),
        ModuleNotFoundError(),
    ]
    + [UnboundLocalError(), KeyboardInterrupt(), SystemExit(), GeneratorExit()],
)
def test_errors_that_no_other_sample_makes_good(error: BaseException) -> None:
    assert not is_of_sample(error, stateless=True)


def test_policy_is_checked() -> None:
    with pytest.raises(ConfigError, match="on_error is 'skip'"):
        ErrorPolicy(on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tolerance is 0"):
        ErrorPolicy(tolerance=0)
    assert [ErrorPolicy(tolerance=9).bound(own) for own in (None, 3, 30, 0)] == [9, 3, 30, UNBOUNDED]


def fault(index: int, kind: str = "DecodeError") -> Fault:
    return Fault(
        source="a",
        index=index,
        shard=None,
        key=None,
        address=0,
        attempt=0,
        hook="read",
        kind=kind,
        reason="",
    )


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
