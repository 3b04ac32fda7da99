"""Whole samples of `GPTDataset` against megatron-core's, its ramp-up of batches, and its samplers."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace.integrations.megatron
from counts import cases
from headrace import BatchSchedule
from headrace.compat.megatron.blend import GPTBlend
from headrace.compat.megatron.gpt import GPTDataset, GPTMasks
from interop import megatron_peer
from interop.megatron_peer import Tokenizer, check_samples, data_path, write_drawn

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

BETWEEN = "inter_document_masking"
"""An option that megatron-core 0.16 has not got."""
FLAGS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")


def low_level(prefix: Path, sequences: np.ndarray, wanted: int | None, part: str, **options: Any) -> Any:
    """Megatron's dataset over some of the sequences of a pair."""
    given = megatron_peer.config(blend=([str(prefix)], None), path_to_cache=str(prefix.parent / "cache"), **options)
    split = megatron_peer.core("datasets.utils").Split[part]
    make = megatron_peer.core("datasets.gpt_dataset").GPTDataset
    return make(megatron_peer.indexed(prefix), str(prefix), sequences.astype(np.int32), wanted, split, given)


class Padded(Tokenizer):
    pad = 7


@pytest.mark.parametrize("seed", range(cases(12, 600)))
def test_samples(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = write_drawn(tmp_path / "x", rng)
    split = str(rng.choice(["1,0,0", "969,30,1", "1,1,1", "80,20"]))
    part = str(rng.choice(["train", "train", "valid", "test"])) if split == "1,1,1" else "train"
    flags = {name: bool(rng.random() < 0.4) for name in FLAGS}
    create = flags["reset_attention_mask"] or bool(rng.random() < 0.4)
    if BETWEEN in megatron_peer.core("datasets.gpt_dataset").GPTDatasetConfig.__dataclass_fields__ and seed % 2:
        flags |= {"reset_position_ids": False, "reset_attention_mask": False, BETWEEN: True}
        create = False
    size, wanted = int(rng.integers(2, 40)), [None, int(rng.integers(1, 60))][int(rng.integers(2))]
    tokenizer = [Padded, Tokenizer][int(rng.integers(2))]()
    rest = {
        "add_extra_token_to_sequence": bool(rng.random() < 0.7),
        "drop_last_partial_validation_sequence": bool(rng.random() < 0.6),
    }
    shares = megatron_peer.core("datasets.utils").normalize([float(share) for share in [*split.split(","), 0, 0][:3]])
    borders = np.cumsum([0.0, *shares])
    number = ["train", "valid", "test"].index(part)
    begin, end = (int(round(float(borders[number + i]) * count)) for i in range(2))  # noqa: RUF046 - half to even, as theirs
    low = megatron_peer.indexed(tmp_path / "x")  # which must live as long as its arrays
    if sum(low.sequence_lengths[begin:end]) <= size + 1:
        return
    options = {"random_seed": seed, "sequence_length": size, "split": split, "tokenizer": tokenizer, **rest, **flags}
    try:
        theirs = low_level(tmp_path / "x", np.arange(begin, end), wanted, part, create_attention_mask=create, **options)
    except AssertionError:
        return  # it cannot end in an empty sequence; tests of the order hold what ours does there
    if not len(theirs):
        return
    ours = GPTDataset(
        tmp_path / "x",
        sequence_length=size,
        num_samples=wanted,
        seed=seed,
        split=split,
        split_part=part,  # type: ignore[arg-type]
        masks=GPTMasks.of(tokenizer, create_attention_mask=create, **flags),
        **rest,
    )
    assert len(ours) == len(theirs)
    for name in ("document_index", "sample_index", "shuffle_index"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name))
    check_samples(ours, theirs, range(min(len(ours), 25)))


class PadOfNone(Tokenizer):
    pad = None


class PadOfEod(Tokenizer):
    pad = 3


class PadOfEos(Padded):
    eos = 7


class PadThatRaises(Tokenizer):
    @property
    def pad(self) -> int:
        raise RuntimeError("no pad here")


class PadOfASpecialToken(Padded):
    special_tokens_dict: dict[str, int] = {"pad_token": 7, "sep_token": 7}  # noqa: RUF012


class PadOfItsOwn(PadOfEod):
    """Where there is a list of special tokens, neither ``eos`` nor ``eod`` is asked for."""

    special_tokens_dict: dict[str, int] = {"pad_token": 3, "sep_token": 7}  # noqa: RUF012


class NoEosAtAll(Padded):
    special_tokens_dict: dict[str, int] = {}  # noqa: RUF012

    @property
    def eos(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize(
    "kind",
    [Padded, Tokenizer, PadOfNone, PadOfEod, PadOfEos, PadThatRaises, PadOfASpecialToken, PadOfItsOwn, NoEosAtAll],
)
def test_the_pad_of_a_tokenizer(tmp_path: Path, kind: type, allow: bool) -> None:
    """`GPTMasks.of` settles it as ``MegatronDataset`` does, and the samples are the same."""
    count = write_drawn(tmp_path / "x", np.random.default_rng(1), fewest=20)
    options = {"random_seed": 1, "sequence_length": 9, "split": "1,0,0", "eod_mask_loss": True}
    theirs = low_level(
        tmp_path / "x", np.arange(count), 45, "train", tokenizer=kind(), allow_ambiguous_pad_tokens=allow, **options
    )
    masks = GPTMasks.of(kind(), allow_ambiguous_pad_tokens=allow, eod_mask_loss=True)
    assert masks.pad == (-1 if theirs._pad_token_id is None else theirs._pad_token_id)
    ours = GPTDataset(tmp_path / "x", sequence_length=9, num_samples=45, seed=1, masks=masks)
    check_samples(ours, theirs, range(45))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("seed", range(cases(15, 200)))
def test_blends(tmp_path: Path, seed: int) -> None:
    """`GPTBlend.of` beside Megatron's builder, with any surplus: which dataset, which of its samples, which tokens."""
    rng = np.random.default_rng(seed)
    prefixes = [str(tmp_path / name) for name in "abcd"[: int(rng.integers(1, 5))]]
    for prefix in prefixes:
        write_drawn(Path(prefix), rng)
    weighted = len(prefixes) == 1 or rng.random() < 0.7
    weights = [float(weight) for weight in rng.integers(1, 9, len(prefixes))] if weighted else None
    wanted = int(rng.integers(1, 300)) if weights is not None or rng.random() < 0.5 else None
    surplus = float(rng.choice([0.005, 0.0, 0.01, 0.3]))
    theirs = megatron_peer.build(
        [wanted, 1, 1] if weights else [wanted] * 3,
        random_seed=seed,
        sequence_length=4,
        blend=(prefixes, weights),
        split="1,0,0",
        path_to_cache=str(tmp_path / "cache"),
        mid_level_dataset_surplus=surplus,
    )[0]
    ours = GPTBlend.of(
        data_path(prefixes, weights),
        num_samples=wanted,
        build=lambda prefix, n: GPTDataset(prefix, sequence_length=4, num_samples=n, seed=seed),
        one_part=False,
        surplus=surplus,
    )
    assert isinstance(ours, GPTBlend)
    assert [len(one) for one in ours.datasets] == [len(one) for one in theirs.datasets]
    assert np.array_equal(ours.dataset_index, theirs.dataset_index)
    assert np.array_equal(ours.dataset_sample_index, theirs.dataset_sample_index)
    assert len(ours) == len(theirs)
    for i in rng.integers(0, len(ours), 10).tolist():
        mine, expected = ours[i], theirs[i]
        assert int(mine["dataset_id"]) == int(expected["dataset_id"])
        for name in ("tokens", "labels", "loss_mask", "position_ids"):
            assert torch.equal(torch.from_numpy(mine[name]), expected[name])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("seed", range(cases(5, 50)))
def test_the_drop_in_provider(tmp_path: Path, seed: int) -> None:
    """The provider gives the three datasets that Megatron's builder gives, and its loader batches."""
    rng = np.random.default_rng(seed)
    prefixes = [str(tmp_path / name) for name in "ab"]
    for prefix in prefixes:
        write_drawn(Path(prefix), rng, fewest=40)
    flags = {name: bool(rng.random() < 0.5) for name in FLAGS}
    wanted = [int(n) for n in rng.integers(1, 80, 2)] + [0]
    kind = [Padded, PadOfEod, PadOfNone, PadThatRaises][seed % 4]
    words = data_path(prefixes, [0.6, 0.4])
    if seed % 2:
        data: dict[str, Any] = {"blend_per_split": [(prefixes, [0.6, 0.4]), (prefixes[:1], [1.0]), None]}
        own = {"data_path": None, "split": None, "train_data_path": words, "mid_level_dataset_surplus": 0.3}
        own |= {"valid_data_path": ["1.0", prefixes[0]], "test_data_path": None}
    else:
        data = {"blend": (prefixes, [0.6, 0.4]), "split": "70,30"}
        own = {"data_path": words, "split": "70,30"}
    theirs = megatron_peer.build(
        [*wanted[:2], 1],
        random_seed=seed,
        sequence_length=6,
        path_to_cache=str(tmp_path / "cache"),
        tokenizer=kind(),
        create_attention_mask=True,
        mid_level_dataset_surplus=[0.005, 0.3][seed % 2],
        **data,
        **flags,
    )
    args = Namespace(seq_length=6, seed=seed, create_attention_mask_in_dataloader=True, **flags, **own)
    ours = headrace.integrations.megatron.datasets(args, kind(), wanted)
    assert ours[2] is None
    assert theirs[2] is None
    for mine, expected in zip(ours[:2], theirs[:2], strict=True):
        assert len(mine) == len(expected)
        [batch] = list(torch.utils.data.DataLoader(mine, batch_size=len(mine)))
        for i in range(len(mine)):
            for one in getattr(expected, "datasets", [expected]):
                one.masks_and_position_ids_are_cached = False
            for name, value in expected[i].items():
                assert torch.equal(batch[name][i], torch.as_tensor(value)), name


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("seed", range(cases(3, 30)))
def test_several_validation_sets(tmp_path: Path, seed: int, full: bool) -> None:
    """``--multiple-validation-sets``: a dataset for each prefix, as in docs/megatron.md; full or by a number."""
    rng = np.random.default_rng(seed)
    prefixes = [str(tmp_path / name) for name in "abc"]
    for prefix in prefixes:
        write_drawn(Path(prefix), rng, fewest=20)
    wanted = None if full else int(rng.integers(1, 80))
    try:
        theirs = megatron_peer.build(
            [None, wanted, None],
            random_seed=seed,
            sequence_length=6,
            blend_per_split=[None, (prefixes, None), None],
            split=None,
            multiple_validation_sets=True,
            full_validation=full,
            drop_last_partial_validation_sequence=not full,
            path_to_cache=str(tmp_path / "cache"),
        )[1]
    except AssertionError:
        return  # it cannot end in an empty sequence
    for prefix, expected in zip(prefixes, theirs, strict=True):
        ours = GPTDataset(
            prefix,
            sequence_length=6,
            num_samples=wanted,
            seed=seed,
            split="0,1,0",
            split_part="valid",
            drop_last_partial_validation_sequence=not full,
        )
        assert len(ours) == len(expected)
        check_samples(ours, expected, range(len(ours)))


@pytest.mark.parametrize("seed", range(cases(24, 2000)))
@pytest.mark.filterwarnings("ignore")
def test_ramp_up_has_the_sizes_of_the_calculator(seed: int) -> None:
    """At every step up to well behind the ramp-up, with and without sizes rounded down to what divides."""
    calculator = pytest.importorskip("megatron.core.num_microbatches_calculator")
    rng = np.random.default_rng(seed)
    micro, ranks, increment, num_increments = (int(rng.integers(1, high)) for high in (5, 5, 40, 40))
    decrease = bool(rng.integers(2))
    together = micro * ranks
    if decrease:
        start = together + int(rng.integers(0, 30))
    else:
        start, increment = together * int(rng.integers(1, 9)), increment * together
    last = start + num_increments * increment
    samples = int(rng.integers(1, int(rng.choice([50, 5_000, 300_000]))))
    if not hasattr(calculator, "RampupBatchsizeNumMicroBatchesCalculator"):
        pytest.skip("this version ignores --rampup-batch-size")
    theirs = calculator.RampupBatchsizeNumMicroBatchesCalculator(
        last, micro, ranks, decrease, 1, start, increment, samples
    )
    ours = BatchSchedule.ramp_up(
        start=start,
        increment=increment,
        samples=samples,
        global_batch_size=last,
        multiple_of=together if decrease else 1,
    )
    consumed = step = 0
    sizes: set[int] = set()
    while consumed < samples + 3 * last:
        theirs.update(consumed, True)
        size = theirs.get() * together
        assert size == theirs.get_current_running_global_batch_size()
        if size not in sizes:
            assert ours.begin(step) == consumed
            sizes.add(size)
        assert ours.size(step) == size
        consumed += size
        step += 1
    assert [size for _, size in ours.pieces] == sorted(sizes)
