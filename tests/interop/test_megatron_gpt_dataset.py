"""Whole samples of `GPTDataset` against megatron-core's: tokens, labels, loss masks, positions, attention masks."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace.integrations.megatron
from counts import cases
from headrace.compat.megatron.blend import GPTBlend
from headrace.compat.megatron.gpt import GPTDataset, GPTMasks

pytestmark = pytest.mark.interop


class Tokenizer:
    vocab_size = 60_000
    eod = 3
    pad = 7
    unique_identifiers: dict[str, str] = {"class": "none"}  # noqa: RUF012


class NoPad:
    vocab_size = 60_000
    eod = 3
    unique_identifiers: dict[str, str] = {"class": "none"}  # noqa: RUF012


@pytest.fixture(scope="module")
def megatron() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("megatron.core")
        from megatron.core.datasets import gpt_dataset, indexed_dataset, utils

        return gpt_dataset, indexed_dataset, utils


def write(indexed: Any, prefix: Path, rng: np.random.Generator, least: int = 3) -> int:
    """Documents of one to three sequences, some of them empty, of few different ids; returns the sequences."""
    builder = indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=rng.choice([np.uint16, np.int32]))
    count = 0
    for _ in range(int(rng.integers(least, least + 37))):
        lengths = rng.integers(0, 30, rng.integers(1, 4))
        builder.add_document(torch.from_numpy(rng.integers(0, 12, lengths.sum()).astype(np.int64)), lengths.tolist())
        count += len(lengths)
    builder.finalize(f"{prefix}.idx")
    return count


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(cases(12, 600)))
def test_samples(megatron: Any, tmp_path: Path, seed: int) -> None:
    gpt, indexed, utils = megatron
    rng = np.random.default_rng(seed)
    count = write(indexed, tmp_path / "x", rng)
    split = str(rng.choice(["1,0,0", "969,30,1", "1,1,1", "80,20"]))
    part = str(rng.choice(["train", "train", "valid", "test"])) if split == "1,1,1" else "train"
    flags = {name: bool(rng.random() < 0.4) for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")}
    create = flags["reset_attention_mask"] or bool(rng.random() < 0.4)
    extra, drop = bool(rng.random() < 0.7), bool(rng.random() < 0.6)
    size, wanted = int(rng.integers(2, 40)), [None, int(rng.integers(1, 60))][int(rng.integers(2))]
    tokenizer = [Tokenizer, NoPad][int(rng.integers(2))]()
    config = gpt.GPTDatasetConfig(
        random_seed=seed,
        sequence_length=size,
        blend=([str(tmp_path / "x")], None),
        split=split,
        path_to_cache=str(tmp_path / "cache"),
        tokenizer=tokenizer,
        create_attention_mask=create,
        drop_last_partial_validation_sequence=drop,
        add_extra_token_to_sequence=extra,
        **flags,
    )
    low = indexed.IndexedDataset(str(tmp_path / "x"))
    shares = utils.normalize([float(share) for share in [*split.split(","), 0, 0][:3]])
    borders = np.cumsum([0.0, *shares])
    number = ["train", "valid", "test"].index(part)
    begin, end = (int(round(float(borders[number + i]) * count)) for i in range(2))  # noqa: RUF046 - half to even, as theirs
    theirs = None
    if sum(low.sequence_lengths[begin:end]) > size + 1:
        try:
            theirs = gpt.GPTDataset(
                low, str(tmp_path / "x"), np.arange(begin, end, dtype=np.int32), wanted, utils.Split[part], config
            )
        except AssertionError:
            return  # it cannot end in an empty sequence; tests of the order hold what ours does there
    if theirs is None or not len(theirs):
        return
    ours = GPTDataset(
        tmp_path / "x",
        sequence_length=size,
        num_samples=wanted,
        seed=seed,
        split=split,
        split_part=part,  # type: ignore[arg-type]
        add_extra_token_to_sequence=extra,
        drop_last_partial_validation_sequence=drop,
        masks=GPTMasks.of(tokenizer, create_attention_mask=create, **flags),
    )
    assert len(ours) == len(theirs)
    for name in ("document_index", "sample_index", "shuffle_index"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name))
    for i in range(min(len(ours), 25)):
        # Megatron keeps the first sample's loss mask, zeros and all, for every later one.
        theirs.masks_and_position_ids_are_cached = False
        mine, expected = ours[i], theirs[i]
        assert set(mine) == set(expected)
        for name, value in expected.items():
            assert torch.equal(torch.from_numpy(mine[name]), value), name
            assert torch.from_numpy(mine[name]).dtype == value.dtype, name


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one, which the builder asks for its rank."""
    meeting = f"file://{tmp_path / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class PadOfNone(Tokenizer):
    pad = None  # type: ignore[assignment]


class PadOfEod(Tokenizer):
    pad = 3


class PadOfEos(Tokenizer):
    eos = 7


class PadThatRaises(Tokenizer):
    @property
    def pad(self) -> int:  # type: ignore[override]
        raise RuntimeError("no pad here")


class PadOfASpecialToken(Tokenizer):
    special_tokens_dict: dict[str, int] = {"pad_token": 7, "sep_token": 7}  # noqa: RUF012


class PadOfItsOwn(Tokenizer):
    """Where there is a list of special tokens, neither ``eos`` nor ``eod`` is asked for."""

    pad = 3
    special_tokens_dict: dict[str, int] = {"pad_token": 3, "sep_token": 7}  # noqa: RUF012


class NoEosAtAll(Tokenizer):
    special_tokens_dict: dict[str, int] = {}  # noqa: RUF012

    @property
    def eos(self) -> int:
        raise NotImplementedError


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize(
    "kind",
    [Tokenizer, NoPad, PadOfNone, PadOfEod, PadOfEos, PadThatRaises, PadOfASpecialToken, PadOfItsOwn, NoEosAtAll],
)
def test_the_pad_of_a_tokenizer(megatron: Any, tmp_path: Path, kind: type, allow: bool) -> None:
    """`GPTMasks.of` settles it as ``MegatronDataset`` does, and the samples are the same."""
    gpt, indexed, utils = megatron
    count = write(indexed, tmp_path / "x", np.random.default_rng(1), least=20)
    config = gpt.GPTDatasetConfig(
        random_seed=1,
        sequence_length=9,
        blend=([str(tmp_path / "x")], None),
        split="1,0,0",
        path_to_cache=str(tmp_path / "cache"),
        tokenizer=kind(),
        create_attention_mask=False,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=True,
        allow_ambiguous_pad_tokens=allow,
    )
    low = indexed.IndexedDataset(str(tmp_path / "x"))
    theirs = gpt.GPTDataset(
        low, str(tmp_path / "x"), np.arange(count, dtype=np.int32), 45, utils.Split["train"], config
    )
    masks = GPTMasks.of(kind(), allow_ambiguous_pad_tokens=allow, eod_mask_loss=True)
    assert masks.pad == (-1 if theirs._pad_token_id is None else theirs._pad_token_id)
    ours = GPTDataset(tmp_path / "x", sequence_length=9, num_samples=45, seed=1, masks=masks)
    for i in range(45):
        mine, expected = ours[i], theirs[i]
        for name, value in expected.items():
            assert torch.equal(torch.from_numpy(mine[name]), value), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("seed", range(cases(15, 200)))
def test_blends(megatron: Any, tmp_path: Path, seed: int) -> None:
    """`GPTBlend.of` beside Megatron's builder: which dataset, which of its samples, which tokens."""
    gpt, indexed, _ = megatron
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder

    rng = np.random.default_rng(seed)
    prefixes = [str(tmp_path / name) for name in "abcd"[: int(rng.integers(1, 5))]]
    for prefix in prefixes:
        write(indexed, Path(prefix), rng)
    weighted = len(prefixes) == 1 or rng.random() < 0.7
    weights = [float(weight) for weight in rng.integers(1, 9, len(prefixes))] if weighted else None
    wanted = int(rng.integers(1, 300)) if weights is not None or rng.random() < 0.5 else None
    config = gpt.GPTDatasetConfig(
        random_seed=seed,
        sequence_length=4,
        blend=(prefixes, weights),
        split="1,0,0",
        path_to_cache=str(tmp_path / "cache"),
        tokenizer=NoPad(),
        create_attention_mask=False,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    config.mid_level_dataset_surplus = 0.005
    theirs = BlendedMegatronDatasetBuilder(
        gpt.GPTDataset, [wanted, 1, 1] if weights else [wanted] * 3, lambda: True, config
    ).build()[0]
    words = prefixes if weights is None else [str(w) for pair in zip(weights, prefixes, strict=True) for w in pair]
    ours = GPTBlend.of(
        words,
        num_samples=wanted,
        build=lambda prefix, n: GPTDataset(prefix, sequence_length=4, num_samples=n, seed=seed),
        one_part=False,
    )
    assert isinstance(ours, GPTBlend)
    assert np.array_equal(ours.dataset_index, theirs.dataset_index)
    assert np.array_equal(ours.dataset_sample_index, theirs.dataset_sample_index)
    assert len(ours) == len(theirs)
    for i in rng.integers(0, len(ours), 10).tolist():
        mine, expected = ours[i], theirs[i]
        assert int(mine["dataset_id"]) == int(expected["dataset_id"])
        for name in ("tokens", "labels", "loss_mask", "position_ids"):
            assert torch.equal(torch.from_numpy(mine[name]), expected[name])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("seed", range(cases(5, 50)))
def test_the_drop_in_provider(megatron: Any, tmp_path: Path, seed: int) -> None:
    """The provider gives the three datasets that Megatron's builder gives, and its loader batches."""
    gpt, indexed, _ = megatron
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder

    rng = np.random.default_rng(seed)
    prefixes = [str(tmp_path / name) for name in "ab"]
    for prefix in prefixes:
        write(indexed, Path(prefix), rng, least=40)
    flags = {name: bool(rng.random() < 0.5) for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")}
    wanted = [int(n) for n in rng.integers(1, 80, 2)] + [0]
    kind = [Tokenizer, PadOfEod, PadOfNone, PadThatRaises][seed % 4]
    if seed % 2:
        data = {"blend_per_split": [(prefixes, [0.6, 0.4]), (prefixes[:1], [1.0]), None]}
        own = {"data_path": None, "split": None, "train_data_path": ["0.6", prefixes[0], "0.4", prefixes[1]]}
        own |= {"valid_data_path": ["1.0", prefixes[0]], "test_data_path": None}
    else:
        data = {"blend": (prefixes, [0.6, 0.4]), "split": "70,30"}
        own = {"data_path": ["0.6", prefixes[0], "0.4", prefixes[1]], "split": "70,30"}
    config = gpt.GPTDatasetConfig(
        random_seed=seed,
        sequence_length=6,
        **data,
        path_to_cache=str(tmp_path / "cache"),
        tokenizer=kind(),
        create_attention_mask=True,
        **flags,
    )
    config.mid_level_dataset_surplus = [0.005, 0.3][seed % 2]
    theirs = BlendedMegatronDatasetBuilder(gpt.GPTDataset, [*wanted[:2], 1], lambda: True, config).build()
    own |= {"mid_level_dataset_surplus": 0.3} if seed % 2 else {}
    args = Namespace(seq_length=6, seed=seed, create_attention_mask_in_dataloader=True, **flags, **own)
    ours = headrace.integrations.megatron.datasets(args, kind(), wanted)
    assert ours[2] is None
    assert theirs[2] is None
    for mine, expected in zip(ours[:2], theirs[:2], strict=True):
        assert len(mine) == len(expected)
        batches = torch.utils.data.DataLoader(mine, batch_size=len(mine))
        [batch] = list(batches)
        for i in range(len(mine)):
            for one in getattr(expected, "datasets", [expected]):
                one.masks_and_position_ids_are_cached = False
            for name, value in expected[i].items():
                assert torch.equal(batch[name][i], torch.as_tensor(value)), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("seed", range(cases(3, 30)))
def test_several_validation_sets(megatron: Any, tmp_path: Path, seed: int, full: bool) -> None:
    """``--multiple-validation-sets``: a dataset for each prefix, as in docs/megatron.md; full or by a number."""
    gpt, indexed, _ = megatron
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder

    rng = np.random.default_rng(seed)
    prefixes = [str(tmp_path / name) for name in "abc"]
    for prefix in prefixes:
        write(indexed, Path(prefix), rng, least=20)
    wanted = None if full else int(rng.integers(1, 80))
    config = gpt.GPTDatasetConfig(
        random_seed=seed,
        sequence_length=6,
        blend_per_split=[None, (prefixes, None), None],
        split=None,
        multiple_validation_sets=True,
        full_validation=full,
        drop_last_partial_validation_sequence=not full,
        path_to_cache=str(tmp_path / "cache"),
        tokenizer=NoPad(),
        create_attention_mask=False,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    config.mid_level_dataset_surplus = 0.005
    try:
        theirs = BlendedMegatronDatasetBuilder(gpt.GPTDataset, [None, wanted, None], lambda: True, config).build()[1]
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
        for i in range(len(ours)):
            expected.masks_and_position_ids_are_cached = False
            for name, value in expected[i].items():
                assert torch.equal(torch.from_numpy(ours[i][name]), value), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("surplus", [0, 0.01, 0.3])
def test_the_surplus_and_parts_of_no_samples(megatron: Any, tmp_path: Path, surplus: float) -> None:
    """``--mid-level-dataset-surplus``, and ``--split 98,1,1 --eval-iters 0``, which asks for no validation samples."""
    gpt, indexed, _ = megatron
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder

    prefixes = [str(tmp_path / name) for name in "ab"]
    for prefix in prefixes:
        write(indexed, Path(prefix), np.random.default_rng(5), least=36)
    config = gpt.GPTDatasetConfig(
        random_seed=3,
        sequence_length=4,
        blend=(prefixes, [0.6, 0.4]),
        split="98,1,1",
        path_to_cache=str(tmp_path / "cache"),
        tokenizer=NoPad(),
        create_attention_mask=False,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    config.mid_level_dataset_surplus = surplus
    theirs = BlendedMegatronDatasetBuilder(gpt.GPTDataset, [200, 0, 0], lambda: True, config).build()
    words = ["0.6", prefixes[0], "0.4", prefixes[1]]
    for part, wanted, expected in zip(("train", "valid", "test"), (200, 0, 0), theirs, strict=True):

        def build(prefix: str, num_samples: int | None, part: Any = part) -> GPTDataset:
            options: dict[str, Any] = {"sequence_length": 4, "seed": 3, "split": "98,1,1", "split_part": part}
            return GPTDataset(prefix, num_samples=num_samples, **options)

        ours = GPTBlend.of(words, num_samples=wanted, build=build, one_part=False, surplus=surplus)
        assert isinstance(ours, GPTBlend)
        assert len(ours) == len(expected)
        assert [len(one) for one in ours.datasets] == [len(one) for one in expected.datasets]
        for i in range(len(ours)):
            assert torch.equal(torch.from_numpy(ours[i]["tokens"]), expected[i]["tokens"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("seed", range(cases(5, 50)))
def test_blends_per_split(megatron: Any, tmp_path: Path, seed: int) -> None:
    """Each part with data of its own: one `GPTBlend` each, that gets all of it."""
    gpt, indexed, _ = megatron
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder

    rng = np.random.default_rng(seed)
    prefixes = [str(tmp_path / name) for name in "abc"]
    for prefix in prefixes:
        write(indexed, Path(prefix), rng, least=20)
    parts = [(prefixes[:2], [0.3, 0.7]), (prefixes[1:], None), (prefixes[:1], [[1.0], None, [0.3]][seed % 3])]
    wanted = [int(n) for n in rng.integers(1, 80, 3)]
    config = gpt.GPTDatasetConfig(
        random_seed=seed,
        sequence_length=6,
        blend_per_split=parts,
        split=None,
        path_to_cache=str(tmp_path / "cache"),
        tokenizer=NoPad(),
        create_attention_mask=False,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    config.mid_level_dataset_surplus = 0.005
    theirs = BlendedMegatronDatasetBuilder(gpt.GPTDataset, wanted, lambda: True, config).build()
    for number, (names, weights) in enumerate(parts):

        def build(prefix: str, num_samples: int | None, number: int = number) -> GPTDataset:
            return GPTDataset(
                prefix,
                sequence_length=6,
                num_samples=num_samples,
                seed=seed,
                split=["1,0,0", "0,1,0", "0,0,1"][number],
                split_part=("train", "valid", "test")[number],
            )

        words = names if weights is None else [str(w) for pair in zip(weights, names, strict=True) for w in pair]
        ours = GPTBlend.of(words, num_samples=wanted[number], build=build)
        assert len(ours) == len(theirs[number])
        assert isinstance(ours, GPTBlend) == hasattr(theirs[number], "dataset_index")
        for i in rng.integers(0, len(ours), 10).tolist():
            assert torch.equal(torch.from_numpy(ours[i]["tokens"]), theirs[number][i]["tokens"])
