"""Records with a loss mask: labels, counts, cutting, by plain loops over the lists that were stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import records_made
from counts import cases
from headrace import ConfigError, InputError, PackedSequenceDataset, Packing, SFTDataset
from headrace.datasets import Collation, Run, count_step

RECORDS = records_made.sft(0, 60)
LABELLED = [{**record, "label": [number % 3 % 2]} for number, record in enumerate(RECORDS)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sft")
    found = {layout: records_made.store(folder / layout, RECORDS, layout) for layout in ("combined", "keyed")}
    return {**found, "labelled": records_made.store(folder / "labelled", LABELLED)}


def plain(record: records_made.Record, collation: Collation, labels: str) -> tuple[list[int], list[int]]:
    """ids and labels of one record."""
    ids = collation.cut(np.array(record["tokens"])).tolist()
    marks = collation.cut(np.array(record["loss_mask"])).tolist()
    own = [-100] + [token if mark else -100 for token, mark in zip(ids[1:], marks[1:], strict=True)]
    return ids, own if labels == "same" else [*own[1:], -100]


@settings(max_examples=cases(24, 600), deadline=None)
@given(
    st.sampled_from(["combined", "keyed", "labelled"]),
    st.sampled_from(["next", "same"]),
    st.sampled_from([None, "truncate_right", "truncate_left"]),
    st.sampled_from(["right", "left", None]),
    st.integers(1, 9),
    st.lists(st.integers(0, len(RECORDS) - 1), min_size=0, max_size=7),
)
def test_batches_are_the_records_padded(
    stores: dict[str, Any], layout: str, labels: Any, over_long: Any, side: Any, multiple: int, chosen: list[int]
) -> None:
    limit = {} if over_long is None else {"max_length": 11, "over_long": over_long}
    collation = Collation(padding_side=side, multiple_of=multiple, padding_idx=7, **limit)
    dataset = SFTDataset(stores[layout], collation, labels=labels)
    batch = dataset.read(dataset.locate(np.array(chosen, dtype=np.int64)))
    rows = [plain(RECORDS[i], collation, labels) for i in chosen]
    longest = max((len(ids) for ids, _ in rows), default=0)
    width = -(-longest // multiple) * multiple
    for row, (ids, wanted) in enumerate(rows):
        pads = width - len(ids)
        begin = pads if side == "left" else 0
        span = slice(begin, begin + len(ids))
        assert batch["input_ids"][row, span].tolist() == ids
        assert batch["labels"][row, span].tolist() == wanted
        assert batch["position_ids"][row, span].tolist() == list(range(len(ids)))
        outside = np.ones(width, dtype=bool)
        outside[span] = False
        assert set(batch["input_ids"][row, outside].tolist()) <= {7}
        assert set(batch["labels"][row, outside].tolist()) <= {-100}
        assert (batch["attention_mask"][row] == ~outside).all()
    assert {name: values.shape for name, values in batch.items() if name in dataset.fields} == {
        name: (len(chosen), width) if shape else (len(chosen),) for name, (shape, _) in dataset.fields.items()
    }
    assert ("label" in batch) == (layout == "labelled")
    if "label" in batch:
        assert batch["label"].tolist() == [LABELLED[i]["label"] == [1] for i in chosen]
    assert {name: values.dtype for name, values in batch.items() if name in dataset.fields} == {
        name: dtype for name, (_, dtype) in dataset.fields.items()
    }
    assert (batch["loss_mask"] == (batch["labels"] != -100)).all()
    counts = dataset.count(np.array(chosen, dtype=np.int64))
    assert batch["num_supervised_tokens"] == counts.supervised_tokens.sum() == batch["loss_mask"].sum()
    assert counts.supervised_tokens.tolist() == [sum(label != -100 for label in wanted) for _, wanted in rows]
    assert counts.tokens.tolist() == [len(ids) for ids, _ in rows]
    assert counts.documents.tolist() == [1] * len(chosen)
    assert dataset.sample_lengths(np.array(chosen, dtype=np.int64)).tolist() == [len(ids) for ids, _ in rows]


@settings(max_examples=cases(24, 600), deadline=None)
@given(
    st.sampled_from(["combined", "keyed", "labelled"]),
    st.sampled_from(["next", "same"]),
    st.sampled_from(["loss_mask", None]),
    st.builds(
        Collation,
        padding_side=st.sampled_from(["right", "left", None]),
        multiple_of=st.sampled_from([1, 4]),
        padding_idx=st.sampled_from([0, 7, 60_000]),
        max_length=st.just(400),
        pad_to=st.sampled_from(["longest", "max_length"]),
    ),
    st.lists(st.lists(st.integers(0, len(RECORDS) - 1), max_size=5), min_size=1, max_size=4),
)
def test_batches_made_in_one_pass_are_the_same(
    stores: dict[str, Any], layout: str, labels: Any, mask: str | None, collation: Collation, chosen: list[list[int]]
) -> None:
    dataset = SFTDataset(stores[layout], collation, labels=labels, loss_mask_key=mask)
    addresses = np.array([one for some in chosen for one in some], dtype=np.int64)
    flat = dataset.flat_batches(addresses, list(map(len, chosen)), lambda size: np.full(size, 255, np.uint8))
    assert flat is not None
    begins = dict.fromkeys(flat.columns, 0)
    for some, shapes, others in zip(chosen, flat.shapes, flat.others, strict=True):
        wanted = dataset.collate(dataset.samples(np.array(some, dtype=np.int64)))
        for name, shape in shapes.items():
            begin, begins[name] = begins[name], begins[name] + int(np.prod(shape))
            found = flat.columns[name][begin : begins[name]].reshape(shape)
            assert found.dtype == wanted[name].dtype
            assert found.tolist() == wanted[name].tolist(), name
        assert [*shapes, *others] == list(wanted)
        assert others == {"num_supervised_tokens": wanted["num_supervised_tokens"]}
    assert begins == {name: len(values) for name, values in flat.columns.items()}


def test_what_needs_a_look_at_each_record_is_not_made_in_one_pass(stores: dict[str, Any]) -> None:
    class Own(SFTDataset):
        def collate(self, samples: Any) -> Any:
            return {"count": len(samples)}

    for dataset in (
        SFTDataset(stores["keyed"], Collation(max_length=3, over_long="truncate_left")),
        SFTDataset(stores["keyed"], Collation(padding_idx=70_000)),
        SFTDataset(stores["keyed"], Collation(padding_idx=-1)),
        Own(stores["keyed"]),
    ):
        assert dataset.flat_batches(np.arange(20), [20], lambda size: np.empty(size, np.uint8)) is None


def test_items_are_unpadded_and_of_their_own_memory(stores: dict[str, Any]) -> None:
    dataset = SFTDataset(stores["combined"])
    first, second, third = dataset[3], dataset.__getitems__([3])[0], dataset[-57]
    ids, labels = plain(RECORDS[3], Collation(), "next")
    assert first["input_ids"].tolist() == ids
    assert first["labels"].tolist() == labels
    assert first["attention_mask"].tolist() == [1] * len(ids)
    for name, values in first.items():
        assert values.dtype == dataset.fields[name][1]
        values[:] = 0
    assert second["input_ids"].tolist() == third["input_ids"].tolist() == ids
    with pytest.raises(IndexError, match="of a dataset of 60"):
        dataset[60]
    assert not hasattr(dataset, "read_into")


def test_items_collate_to_what_is_read_at_once(stores: dict[str, Any]) -> None:
    dataset = SFTDataset(stores["keyed"])
    batch = dataset.collate([dataset[i] for i in (5, 1, 8)])
    lists = dataset.collate([{name: v.tolist() for name, v in dataset[i].items()} for i in (5, 1, 8)])
    wanted = records_made.tensors(dataset.read(np.array([5, 1, 8])))
    assert records_made.tensors(batch) == records_made.tensors(lists) == wanted


def test_counts_are_the_same_without_stored_ones(tmp_path: Path, stores: dict[str, Any]) -> None:
    records = [{key: record[key] for key in ("tokens", "loss_mask")} for record in RECORDS]
    bare = records_made.store(tmp_path / "bare", records)
    every = np.arange(len(records))
    for collation in (Collation(), Collation(max_length=9, over_long="truncate_left")):
        counts = [SFTDataset(store, collation).count(every) for store in (bare, stores["combined"], stores["keyed"])]
        for other in counts[1:]:
            assert [column.tolist() for column in other] == [column.tolist() for column in counts[0]]


def test_masks_of_whole_records_are_not_read_to_count(stores: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = SFTDataset(stores["combined"], Collation(max_length=20, over_long="truncate_right"))
    mask, read = dataset._keys["loss_mask"], []
    values = mask.values
    monkeypatch.setattr(mask, "values", lambda records: read.extend(records.tolist()) or values(records))
    dataset.count(np.arange(len(RECORDS)))
    assert read == [i for i, record in enumerate(RECORDS) if len(record["tokens"]) > 20]


def test_all_tokens_without_a_mask(stores: dict[str, Any]) -> None:
    dataset = SFTDataset(stores["keyed"], loss_mask_key=None, labels="same")
    item = dataset[2]
    assert item["labels"].tolist() == [-100, *RECORDS[2]["tokens"][1:]]
    assert dataset.count(np.array([2])).supervised_tokens.tolist() == [len(RECORDS[2]["tokens"]) - 1]


def test_over_long_records_are_refused_at_once(stores: dict[str, Any]) -> None:
    count = sum(len(record["tokens"]) > 30 for record in RECORDS)
    assert count
    with pytest.raises(ConfigError, match=f"{count} of 60 records are longer than max_length 30; the longest has 40"):
        SFTDataset(stores["combined"], Collation(max_length=30))
    dataset = SFTDataset(stores["combined"], Collation(max_length=40, pad_to="max_length"))
    assert dataset.read(np.array([0]))["input_ids"].shape == (1, 40)


def test_bad_masks_name_the_record(tmp_path: Path) -> None:
    short = records_made.store(
        tmp_path / "short", [{"tokens": [1, 2], "loss_mask": [0, 1]}, {"tokens": [1, 2, 3], "loss_mask": [1]}]
    )
    with pytest.raises(InputError, match="record 1 has 3 tokens and 1 values of 'loss_mask'"):
        SFTDataset(short).read(np.array([0, 1]))
    other = records_made.store(tmp_path / "other", [{"tokens": [1, 2], "loss_mask": [0, 5]}])
    with pytest.raises(InputError, match="record 0: 'loss_mask' holds other values than 0 and 1"):
        SFTDataset(other)[0]


def test_what_is_refused(stores: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected an open store"):
        SFTDataset("stores/web")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="labels is 'shifted'"):
        SFTDataset(stores["keyed"], labels="shifted")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected a Collation"):
        SFTDataset(stores["keyed"], {"max_length": 3})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no key for the loss mask .*'marks'.*its keys are 'tokens', 'loss_mask'"):
        SFTDataset(stores["keyed"], loss_mask_key="marks")
    empty = records_made.store(tmp_path / "empty", [{"tokens": [], "loss_mask": []}])
    assert SFTDataset(empty)[0]["input_ids"].tolist() == []
    assert SFTDataset(empty).count(np.array([0])).supervised_tokens.tolist() == [0]


def test_recipe_tells_what_decides_the_bytes(stores: dict[str, Any]) -> None:
    store = stores["combined"]
    datasets = [
        SFTDataset(store),
        SFTDataset(store, labels="same"),
        SFTDataset(store, loss_mask_key=None),
        SFTDataset(store, Collation(padding_idx=1)),
        SFTDataset(stores["keyed"]),
    ]
    assert len({dataset.fingerprint for dataset in datasets}) == len(datasets)
    assert SFTDataset(store).fingerprint == datasets[0].fingerprint
    assert repr(datasets[3]).startswith("<SFTDataset: 60 samples, records of ")
    lengths = [len(record["tokens"]) for record in RECORDS]
    assert datasets[0].num_tokens_per_sample == pytest.approx(np.mean(lengths))
    assert datasets[0].deviation_tokens_per_sample == pytest.approx(np.std(lengths))


@pytest.mark.parametrize("layout", ["combined", "keyed"])
def test_the_same_records_packed(stores: dict[str, Any], layout: str) -> None:
    """Packs of the same store supervise the same tokens, each once."""
    packed = PackedSequenceDataset(stores[layout], Packing(seq_len=64), loss_mask_key="loss_mask")
    run = Run(packed, global_batch_size=4, epochs=1)
    assert run.traits.is_counted
    found: dict[int, list[int]] = {}
    for step in range(run.num_steps or 0):
        batch = run.step(step)
        for ids, labels, documents in zip(batch["input_ids"], batch["labels"], batch["document_ids"], strict=True):
            for document in set(documents.tolist()) - {-1}:
                assert ids[documents == document].tolist() == RECORDS[document]["tokens"]
                found[document] = labels[documents == document].tolist()
    assert found == {i: plain(record, Collation(), "next")[1] for i, record in enumerate(RECORDS)}
    counted = SFTDataset(stores[layout]).count(np.arange(len(RECORDS))).supervised_tokens.sum()
    assert counted == sum(count_step(run, step)["supervised_tokens"] for step in range(run.num_steps or 0))


def test_labels_of_answers(stores: dict[str, Any], tmp_path: Path) -> None:
    """A store of the layout kto has them. They are a part of the samples, unless they are left out."""
    dataset = SFTDataset(stores["labelled"])
    assert [bool(dataset[i]["label"]) for i in range(4)] == [False, True, False, False]
    assert dataset.fields["label"] == ((), np.dtype(bool))
    assert "with a label for each" in dataset.describe()
    without = SFTDataset(stores["labelled"], label_key=None)
    assert without.fields == SFTDataset(stores["keyed"]).fields
    assert "label" not in without.recipe["keys"]
    assert "label" in dataset.recipe["keys"]
    with pytest.raises(ConfigError, match="no key for the label of each answer; looked for 'wanted'"):
        SFTDataset(stores["labelled"], label_key="wanted")
    for name, wrong in (("none", []), ("many", [1, 0]), ("other", [2])):
        records = [LABELLED[0], {**LABELLED[1], "label": wrong}]
        found = SFTDataset(records_made.store(tmp_path / name, records))
        assert not found[0]["label"]
        with pytest.raises(InputError, match=r"record 1 has \[.*\] under 'label'; a label is one value, 0 or 1"):
            found.read(np.array([0, 1]))
