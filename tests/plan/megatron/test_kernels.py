"""The loops that numba compiles, compiled and not, against what they replay."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import PATIENCE_S, cases
from headrace.plan.megatron import indices, kernels, torch_randperm
from headrace.plan.megatron.blending import blend_plainly
from plan.megatron import plainly

Kernel = Callable[..., Any]


def made(kernel: Kernel, how: str) -> Kernel:
    if how == "plain":
        return kernel
    pytest.importorskip("numba")
    found = kernels.compiled(kernel)
    assert found is not None
    return found


@pytest.mark.parametrize("how", ["plain", "compiled"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 255, 256, 257, 1000, 4097])
def test_shuffle(how: str, dtype: Any, size: int) -> None:
    """The same array, and the same state of the generator after it."""
    kernel = made(kernels.shuffle_kernel, how)
    for seed in range(3):
        ours, numpys = np.random.RandomState(seed), np.random.RandomState(seed)
        array, expected = np.arange(size, dtype=dtype), np.arange(size, dtype=dtype)
        indices.shuffle_with(kernel, array, ours)
        numpys.shuffle(expected)
        assert np.array_equal(array, expected)
        assert ours.randint(2**31, size=700).tolist() == numpys.randint(2**31, size=700).tolist()


@pytest.mark.parametrize("size", [2**17 - 1, 2**17, 2**17 + 1, 300_000])
def test_a_long_shuffle_takes_the_compiled_loop(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    used = []
    through = indices.shuffle_with
    monkeypatch.setattr(indices, "shuffle_with", lambda *some: (used.append(len(some[1])), through(*some)))
    ours, numpys = np.random.RandomState(11), np.random.RandomState(11)
    array, expected = np.arange(size, dtype=np.int32), np.arange(size, dtype=np.int32)
    indices.shuffle(array, ours)
    numpys.shuffle(expected)
    assert np.array_equal(array, expected)
    assert ours.randint(2**31) == numpys.randint(2**31)
    assert used == ([size] if size >= 2**17 else [])


@pytest.mark.parametrize("how", ["plain", "compiled", "numpy"])
@settings(max_examples=cases(12, 1000), deadline=None)
@given(weights=st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=9), size=st.integers(0, 80))
def test_blend(how: str, weights: list[float], size: int) -> None:
    kernel = blend_plainly if how == "numpy" else made(kernels.blend_kernel, how)
    shares = np.array(weights) / sum(weights)
    datasets, samples = np.zeros(size, np.int16), np.zeros(size, np.int64)
    kernel(shares, np.full(len(weights), 2**62), datasets, samples)
    assert (datasets.tolist(), samples.tolist()) == plainly.blend(shares.tolist(), size)


@pytest.mark.parametrize("how", ["plain", "compiled", "numpy"])
@pytest.mark.parametrize("count", [1, 2, 40, 41, 63, 64, 65, 129])
def test_exhaustive_blend(how: str, count: int) -> None:
    """More datasets than a block has; they are used up at different times, and all weights may be equal."""
    kernel = blend_plainly if how == "numpy" else made(kernels.blend_kernel, how)
    for most in (2, 9):
        sizes = np.random.default_rng(count).integers(1, most, count)
        datasets, samples = np.zeros(sizes.sum(), np.int16), np.zeros(sizes.sum(), np.int64)
        kernel(sizes / sizes.sum(), sizes, datasets, samples)
        assert (datasets.tolist(), samples.tolist()) == plainly.exhaustive(sizes.tolist())


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 160, 1000])
@pytest.mark.parametrize("how", ["plain", "compiled"])
def test_sums(how: str, size: int) -> None:
    """Sizes as they lie in a file: unaligned, and not to be written."""
    rng = np.random.default_rng(size)
    raw = np.zeros(4 * 500 + 1, np.uint8)
    sizes = raw[1:].view(np.int32)
    sizes[:] = rng.integers(0, 2**31 - 1, 500)
    sizes.flags.writeable = False
    entries = rng.integers(0, 500, size).astype(np.int32)
    sums = np.zeros(-(-size // 16) + 1, np.int64)
    made(kernels.sums_kernel, how)(entries, sizes, 16, sums)
    expected = [sum(sizes[entries[: 16 * i]].tolist()) for i in range(len(sums))]
    assert sums.tolist() == expected


@pytest.mark.parametrize("length", [0, 1, 2, 3, 500])
@pytest.mark.parametrize("has_numba", [False, True])
def test_randperm(length: int, has_numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_numba:
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr("headrace.plan.torch_draws.compiled", lambda kernel: None)
    for seed in (0, 7, 2**32 - 1):
        assert torch_randperm(length, seed).tolist() == plainly.randperm(length, seed)


def test_many_are_shuffled_inside_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule for 214,748,364 elements and more at a size that takes no time; interop-full has torch itself."""
    monkeypatch.setattr("headrace.plan.torch_draws.MANY", 20)
    assert torch_randperm(19, 3).tolist() == plainly.randperm(19, 3)
    twister = plainly.Twister(3)
    expected: list[int] = []
    for i in range(20):
        j = ((twister.word() << 32) | twister.word()) % (i + 1)
        expected.append(i)
        expected[i], expected[j] = expected[j], i
    assert torch_randperm(20, 3).tolist() == expected


def test_without_numba_everything_goes_on() -> None:
    """None of it is imported where lengths are small; and a machine where it cannot be."""
    script = (
        "import sys\n"
        "import numpy as np\n"
        "from headrace.plan.megatron import *\n"
        "from headrace.plan.megatron import indices\n"
        "GPTOrder(np.array([9, 9]), GPTSampling(sequence_length=2, num_samples=9, seed=0)).locate(np.array([0]))\n"
        "build_blending_indices([1.0], 9); torch_randperm(9, 0)\n"
        "assert 'numba' not in sys.modules and 'torch' not in sys.modules\n"
        "sys.modules['numba'] = None\n"
        "array = np.arange(indices.LONG_ENOUGH_TO_IMPORT, dtype=np.int32)\n"
        "expected = array.copy()\n"
        "indices.shuffle(array, np.random.RandomState(1)); np.random.RandomState(1).shuffle(expected)\n"
        "assert np.array_equal(array, expected)\n"
        "assert build_blending_indices([.5, .25, .25], 70_000)[0][:4].tolist() == [0, 1, 2, 0]\n"
        "assert torch_randperm(2, 0).tolist() in ([0, 1], [1, 0])\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S)


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    plain_njit = numba.njit

    def njit(*, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function 'twice': no locator available")
        return plain_njit(**options)

    monkeypatch.setattr(numba, "njit", njit)

    def twice(number: int) -> int:
        return 2 * number

    found = kernels.compiled(twice)
    assert found is not None
    assert found(21) == 42
