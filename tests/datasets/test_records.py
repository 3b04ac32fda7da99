"""Records of every kind: batches, labels, counts and cutting by plain loops over the lists that were stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import records_made
from counts import cases
from headrace import ConfigError, InputError, PreferenceDataset, PromptDataset, SFTDataset
from headrace.datasets import Collation, GroupDataset
from headrace.datasets.records import Grid
from headrace.stores import Store
from records_made import Record

SFT = records_made.sft(0, 60)
LABELLED = [{**record, "label": [number % 3 % 2]} for number, record in enumerate(SFT)]
PAIRS = records_made.preferences(1, 40)
GROUPS = records_made.groups(2, 40)
PROMPTS = records_made.prompts(3, 30)
Stores = dict[str, Store]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Of each kind the two layouts of keys; the one that is only named by its layout is for fine-tuning."""
    folder = tmp_path_factory.mktemp("records")
    kinds = {"": SFT, "pairs ": PAIRS, "groups ": GROUPS}
    layouts = [(one, layout) for one in kinds for layout in ("combined", "keyed")]
    found = {
        name + layout: records_made.store(folder / (name + layout), kinds[name], layout) for name, layout in layouts
    }
    return {**found, "labelled": records_made.store(folder / "labelled", LABELLED)}


def plain(record: Record, collation: Collation, labels: str, *, is_masked: bool = True) -> tuple[list[int], list[int]]:
    """ids and labels of one record for fine-tuning."""
    ids = collation.cut(np.array(record["tokens"])).tolist()
    marks = collation.cut(np.array(record["loss_mask"])).tolist() if is_masked else [1] * len(ids)
    own = [-100] + [token if mark else -100 for token, mark in zip(ids[1:], marks[1:], strict=True)]
    return ids, own if labels == "same" else [*own[1:], -100]


@settings(max_examples=cases(12, 600), deadline=None)
@given(
    st.sampled_from(["combined", "keyed", "labelled"]),
    st.sampled_from(["next", "same"]),
    st.sampled_from(["loss_mask", None]),
    st.sampled_from([None, "truncate_right", "truncate_left"]),
    st.sampled_from(["right", "left", None]),
    st.integers(1, 9),
    st.lists(st.integers(0, len(SFT) - 1), min_size=0, max_size=7),
)
def test_batches_are_the_records_padded(
    stores: Stores,
    layout: str,
    labels: Any,
    mask: str | None,
    over_long: Any,
    side: Any,
    multiple: int,
    chosen: list[int],
) -> None:
    limit = {} if over_long is None else {"max_length": 11, "over_long": over_long}
    collation = Collation(padding_side=side, multiple_of=multiple, padding_idx=7, **limit)
    dataset = SFTDataset(stores[layout], collation, labels=labels, loss_mask_key=mask)
    batch = dataset.read(dataset.locate(np.array(chosen, dtype=np.int64)))
    rows = [plain(SFT[i], collation, labels, is_masked=mask is not None) for i in chosen]
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
        assert batch["position_ids"][row, outside].tolist() == list(range(pads))
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


@settings(max_examples=cases(12, 600), deadline=None)
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
    st.lists(st.lists(st.integers(0, len(SFT) - 1), max_size=5), min_size=1, max_size=4),
)
def test_batches_made_in_one_pass_are_the_same(
    stores: Stores, layout: str, labels: Any, mask: str | None, collation: Collation, chosen: list[list[int]]
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


def test_what_needs_a_look_at_each_record_is_not_made_in_one_pass(stores: Stores) -> None:
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


def test_items_are_unpadded_and_of_their_own_memory(stores: Stores) -> None:
    dataset = SFTDataset(stores["combined"])
    first, second, third = dataset[3], dataset.__getitems__([3])[0], dataset[-57]
    ids, labels = plain(SFT[3], Collation(), "next")
    assert first["input_ids"].tolist() == ids
    assert first["labels"].tolist() == labels
    assert first["attention_mask"].tolist() == [1] * len(ids)
    for name, values in first.items():
        assert values.dtype == dataset.fields[name][1]
        values[:] = 0
    assert second["input_ids"].tolist() == third["input_ids"].tolist() == ids
    with pytest.raises(IndexError, match=r"dataset.*60"):
        dataset[60]
    assert not hasattr(dataset, "read_into")
    batch = dataset.collate([dataset[i] for i in (5, 1, 8)])
    lists = dataset.collate([{name: v.tolist() for name, v in dataset[i].items()} for i in (5, 1, 8)])
    wanted = records_made.tensors(dataset.read(np.array([5, 1, 8])))
    assert records_made.tensors(batch) == records_made.tensors(lists) == wanted


def test_counts_are_the_same_without_stored_ones(tmp_path: Path, stores: Stores) -> None:
    records = [{key: record[key] for key in ("tokens", "loss_mask")} for record in SFT]
    bare = records_made.store(tmp_path / "bare", records)
    every = np.arange(len(records))
    for collation in (Collation(), Collation(max_length=9, over_long="truncate_left")):
        counts = [SFTDataset(store, collation).count(every) for store in (bare, stores["combined"], stores["keyed"])]
        for other in counts[1:]:
            assert [column.tolist() for column in other] == [column.tolist() for column in counts[0]]


def test_masks_of_whole_records_are_not_read_to_count(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = SFTDataset(stores["combined"], Collation(max_length=20, over_long="truncate_right"))
    mask, read = dataset._keys["loss_mask"], []
    values = mask.values
    monkeypatch.setattr(mask, "values", lambda records: read.extend(records.tolist()) or values(records))
    dataset.count(np.arange(len(SFT)))
    assert read == [i for i, record in enumerate(SFT) if len(record["tokens"]) > 20]


def test_over_long_records_are_refused_at_once_and_empty_ones_are_taken(stores: Stores, tmp_path: Path) -> None:
    count = sum(len(record["tokens"]) > 30 for record in SFT)
    assert count
    with pytest.raises(ConfigError, match=rf"{count}.*60.*max_length"):
        SFTDataset(stores["combined"], Collation(max_length=30))
    dataset = SFTDataset(stores["combined"], Collation(max_length=40, pad_to="max_length"))
    assert dataset.read(np.array([0]))["input_ids"].shape == (1, 40)
    empty = SFTDataset(records_made.store(tmp_path / "empty", [{"tokens": [], "loss_mask": []}]))
    assert empty[0]["input_ids"].tolist() == empty.sample_lengths(np.arange(0)).tolist() == []
    assert empty.count(np.array([0])).supervised_tokens.tolist() == [0]


def test_recipe_tells_what_decides_the_bytes(stores: Stores) -> None:
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
    lengths = [len(record["tokens"]) for record in SFT]
    assert datasets[0].num_tokens_per_sample == pytest.approx(np.mean(lengths))


def test_labels_of_answers(stores: Stores) -> None:
    """A store of the layout kto has them. They are a part of the samples, unless they are left out."""
    dataset = SFTDataset(stores["labelled"])
    assert [bool(dataset[i]["label"]) for i in range(4)] == [False, True, False, False]
    assert dataset.fields["label"] == ((), np.dtype(bool))
    assert "with a label for each" in dataset.describe()
    without = SFTDataset(stores["labelled"], label_key=None)
    assert without.fields == SFTDataset(stores["keyed"]).fields
    assert "label" not in without.recipe["keys"]
    assert "label" in dataset.recipe["keys"]


def padded(rows: list[list[int]], width: int, fill: int, side: str) -> list[list[int]]:
    return [row + [fill] * (width - len(row)) if side == "right" else [fill] * (width - len(row)) + row for row in rows]


def labels_of(record: records_made.Record, answer: str, kind: str) -> list[int]:
    pairs = zip(record[answer], record[f"{answer}_mask"], strict=True)
    own = [token if mark else -100 for token, mark in pairs]
    own[0] = -100
    return own if kind == "same" else [*own[1:], -100]


@pytest.mark.parametrize("keys", ["combined", "keyed"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("labels", ["next", "same"])
def test_preferences_in_both_layouts_by_plain_lists(stores: Stores, keys: str, side: Any, labels: Any) -> None:
    chosen = [3, 9, 0, 3]
    records = [PAIRS[i] for i in chosen]
    collation = Collation(padding_idx=5, padding_side=side, multiple_of=4)
    width = -(-max(len(record[answer]) for record in records for answer in ("chosen", "rejected")) // 4) * 4
    store = stores[f"pairs {keys}"]
    apart = PreferenceDataset(store, collation, labels=labels)
    batch = apart.read(np.array(chosen))
    masks: list[list[int]] = []
    for answer in ("chosen", "rejected"):
        rows = [record[answer] for record in records]
        assert batch[f"{answer}_input_ids"].tolist() == padded(rows, width, 5, side)
        wanted = [labels_of(record, answer, labels) for record in records]
        assert batch[f"{answer}_labels"].tolist() == padded(wanted, width, -100, side)
        assert batch[f"{answer}_attention_mask"].tolist() == padded([[1] * len(row) for row in rows], width, 0, side)
        masks += padded([record[f"{answer}_mask"] for record in records], width, 0, side)
    stacked = PreferenceDataset(store, collation, labels=labels, layout="stacked").read(np.array(chosen))
    assert stacked["completion_mask"].tolist() == masks
    for name in ("input_ids", "attention_mask"):
        halves = [batch[f"{answer}_{name}"] for answer in ("chosen", "rejected")]
        assert stacked[name].tolist() == np.concatenate(halves).tolist()
    assert batch["num_supervised_tokens"] == stacked["num_supervised_tokens"] == sum(map(sum, masks))
    counts = apart.count(np.array(chosen))
    assert counts.supervised_tokens.sum() == batch["num_supervised_tokens"]
    assert counts.tokens.tolist() == [len(record["chosen"]) + len(record["rejected"]) for record in records]
    assert counts.documents.tolist() == [2] * 4
    lengths = [max(len(record["chosen"]), len(record["rejected"])) for record in records]
    assert apart.sample_lengths(np.array(chosen)).tolist() == lengths
    for name, (_, dtype) in apart.fields.items():
        assert batch[name].dtype == dtype


@pytest.mark.parametrize("keys", ["combined", "keyed"])
def test_cutting_and_counting_preferences(stores: Stores, keys: str) -> None:
    collation = Collation(max_length=8, over_long="truncate_right")
    dataset = PreferenceDataset(stores[f"pairs {keys}"], collation)
    for i, record in enumerate(PAIRS):
        sample = dataset[i]
        supervised = 0
        for answer in ("chosen", "rejected"):
            assert sample[f"{answer}_input_ids"].tolist() == record[answer][:8]
            supervised += sum(record[f"{answer}_mask"][1:8])
        assert dataset.count(np.array([i])).supervised_tokens.tolist() == [supervised]


def split(record: records_made.Record, key: str) -> list[list[int]]:
    """The responses or masks of a record one by one."""
    found, begin = [], 0
    for length in record["response_lengths"]:
        found.append(record[key][begin : begin + length])
        begin += length
    return found


@settings(max_examples=cases(12, 500), deadline=None)
@given(
    st.sampled_from(["combined", "keyed"]),
    st.lists(st.integers(0, len(GROUPS) - 1), max_size=5),
    st.integers(1, 5),
    st.sampled_from([None, 6]),
)
def test_groups_by_plain_loops(
    stores: Stores, layout: str, chosen: list[int], multiple: int, limit: int | None
) -> None:
    options = {} if limit is None else {"max_length": limit, "over_long": "truncate_left"}
    collation = Collation(multiple_of=multiple, padding_idx=3, **options)  # type: ignore[arg-type]
    dataset = GroupDataset(stores[f"groups {layout}"], collation, max_response_length=limit)
    batch = dataset.read(np.array(chosen, dtype=np.int64))
    records = [GROUPS[i] for i in chosen]
    prompts = [record["prompts"][-(limit or 99) :] for record in records]
    responses = [[some[: limit or 99] for some in split(record, "responses")] for record in records]
    masks = [[some[: limit or 99] for some in split(record, "masks")] for record in records]
    size = max(map(len, responses), default=0)
    width = -(-max(map(len, prompts), default=0) // multiple) * multiple
    longest = -(-max((len(one) for some in responses for one in some), default=0) // multiple) * multiple
    assert batch["prompts"].tolist() == [[3] * (width - len(row)) + row for row in prompts]
    assert batch["prompt_mask"].tolist() == [[False] * (width - len(row)) + [True] * len(row) for row in prompts]
    assert batch["responses"].shape == (len(chosen), size, longest)
    for row, (some, marks) in enumerate(zip(responses, masks, strict=True)):
        for number in range(size):
            ids = some[number] if number < len(some) else []
            mine = marks[number] if number < len(some) else []
            pads = longest - len(ids)
            assert batch["responses"][row, number].tolist() == ids + [3] * pads
            assert batch["response_mask"][row, number].tolist() == [True] * len(ids) + [False] * pads
            assert batch["masks"][row, number].tolist() == [bool(mark) for mark in mine] + [False] * pads
    rewards = [np.array(record["rewards"], np.float32).tolist() for record in records]
    assert batch["rewards"].dtype == np.float32
    assert batch["rewards"].tolist() == [some + [0.0] * (size - len(some)) for some in rewards]
    assert batch["group_mask"].tolist() == [[True] * len(some) + [False] * (size - len(some)) for some in rewards]
    counts = dataset.count(np.array(chosen, dtype=np.int64))
    assert counts.supervised_tokens.tolist() == [sum(map(sum, some)) for some in masks]
    assert counts.documents.tolist() == list(map(len, responses))
    assert batch["num_supervised_tokens"] == counts.supervised_tokens.sum()
    assert counts.tokens.tolist() == [
        len(prompt) + sum(map(len, some)) for prompt, some in zip(prompts, responses, strict=True)
    ]
    assert dataset.sample_lengths(np.array(chosen, dtype=np.int64)).tolist() == [
        len(prompt) + max(map(len, some)) for prompt, some in zip(prompts, responses, strict=True)
    ]


def test_fixed_shapes_of_groups(stores: Stores) -> None:
    collation = Collation(max_length=24, pad_to="max_length", multiple_of=8, over_long="truncate_left")
    batch = GroupDataset(stores["groups combined"], collation, max_response_length=32).read(np.array([0, 1]))
    assert batch["prompts"].shape == (2, 24)
    assert batch["responses"].shape[2] == 32
    for cutting, options, named in (
        (collation, {}, "max_response_length"),
        (collation, {"max_response_length": 30}, r"max_response_length.*30.*8"),
        (Collation(), {"max_response_length": 0}, r"max_response_length.*0.*1"),
    ):
        with pytest.raises(ConfigError, match=named):
            GroupDataset(stores["groups combined"], cutting, **options)


def test_items_of_groups(stores: Stores, tmp_path: Path) -> None:
    sample = GroupDataset(stores["groups keyed"])[4]
    assert [one.tolist() for one in sample["responses"]] == split(GROUPS[4], "responses")
    assert {one.dtype for one in sample["masks"]} == {np.dtype(np.bool_)}
    assert sample["prompts"].dtype == np.int64
    assert sample["rewards"].dtype == np.float32
    one = {"prompts": [1], "responses": [2, 3], "masks": [1, 1], "rewards": [0.5]}
    astrai = GroupDataset(records_made.store(tmp_path / "old", [one], "keyed"))
    assert [ids.tolist() for ids in astrai[0]["responses"]] == [[2, 3]], "without lengths, of a group of one"


@pytest.mark.parametrize("layout", ["combined", "keyed"])
def test_prompts(tmp_path: Path, layout: str) -> None:
    dataset = PromptDataset(records_made.store(tmp_path / layout, PROMPTS, layout), Collation(padding_idx=9))
    batch = dataset.read(np.array([4, 2]))
    rows = [PROMPTS[i]["prompts"] for i in (4, 2)]
    width = max(map(len, rows))
    assert batch["input_ids"].tolist() == padded(rows, width, 9, "left")
    assert batch["attention_mask"].tolist() == padded([[1] * len(row) for row in rows], width, 0, "left")
    assert batch["position_ids"].tolist() == [[*range(width - len(row)), *range(len(row))] for row in rows]
    columns = [{"data_source": "made", "reward_model": {"ground_truth": str(i)}, "index": i} for i in (4, 2)]
    assert batch["columns"] == columns
    assert not dataset.traits.is_counted
    assert dataset.sample_lengths(np.array([4, 2])).tolist() == list(map(len, rows))
    assert dataset[4]["columns"]["index"] == 4
    to_the_right = PromptDataset(dataset.store, Collation(padding_side="right", padding_idx=9))
    assert to_the_right.read(np.array([4, 2]))["input_ids"].tolist() == padded(rows, width, 9, "right")
    bare = records_made.store(tmp_path / "bare", [{"prompts": record["prompts"]} for record in PROMPTS])
    assert PromptDataset(bare).read(np.array([0, 1]))["columns"] == [{}, {}]


def changed(record: Record, **keys: list[Any]) -> list[Record]:
    return [{**record, **keys}]


def longer(values: list[Any]) -> list[Any]:
    return [*values, 1]


TWO_RESPONSES = next(record for record in GROUPS if len(record["rewards"]) == 2)
WITHOUT_LENGTHS = {key: values for key, values in TWO_RESPONSES.items() if key != "response_lengths"}
OVER_LONG = {"chosen": [1, 2], "chosen_mask": [0, 1], "rejected": [1, 2, 3], "rejected_mask": [0, 1, 1]}
LENGTHS = GROUPS[0]["response_lengths"]
BAD: dict[str, tuple[Callable[[Store], Any], list[Record], str]] = {
    "mask too short": (SFTDataset, changed(SFT[0], loss_mask=[1]), rf"0.*{len(SFT[0]['tokens'])}.*'loss_mask'"),
    "mask of another number": (SFTDataset, [{"tokens": [1, 2], "loss_mask": [0, 5]}], r"0.*'loss_mask'.*1"),
    "no label": (SFTDataset, [LABELLED[0], *changed(LABELLED[1], label=[])], r"1.*'label'.*0"),
    "two labels": (SFTDataset, [LABELLED[0], *changed(LABELLED[1], label=[1, 0])], r"1.*'label'.*0"),
    "label of another number": (SFTDataset, [LABELLED[0], *changed(LABELLED[1], label=[2])], r"1.*'label'.*0"),
    "rejected mask": (PreferenceDataset, changed(PAIRS[0], rejected_mask=[1]), "'rejected_mask'"),
    "over-long": (lambda store: PreferenceDataset(store, Collation(max_length=2)), [OVER_LONG], r"0.*3.*max_length"),
    "rewards": (
        GroupDataset,
        changed(GROUPS[0], rewards=longer(GROUPS[0]["rewards"])),
        "rewards",
    ),
    "lengths": (GroupDataset, changed(GROUPS[0], response_lengths=[*LENGTHS[:-1], LENGTHS[-1] + 1]), "responses"),
    "masks": (GroupDataset, changed(GROUPS[0], masks=longer(GROUPS[0]["masks"])), "'masks'"),
    "response too long": (lambda store: GroupDataset(store, max_response_length=1), GROUPS, r"max_response_length.*1"),
    "several without lengths": (GroupDataset, [WITHOUT_LENGTHS], r"0.*2.*'response_lengths'"),
    "columns": (PromptDataset, [PROMPTS[0], *changed(PROMPTS[1], columns=list(b"[1]"))], r"1.*JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_record_is_named(tmp_path: Path, case: str) -> None:
    kind, records, named = BAD[case]
    dataset = kind(records_made.store(tmp_path / "bad", records))
    with pytest.raises(InputError, match=named):
        dataset.read(np.arange(len(records)))


@pytest.mark.parametrize(
    ("kind", "given", "options", "named"),
    [
        (SFTDataset, "stores/web", {}, "expected"),
        (PreferenceDataset, None, {}, "expected"),
        (GroupDataset, 3, {}, "expected"),
        (PromptDataset, [], {}, "expected"),
        (SFTDataset, SFT, {"labels": "shifted"}, "'shifted'"),
        (SFTDataset, SFT, {"collation": {"max_length": 3}}, "Collation"),
        (SFTDataset, SFT, {"loss_mask_key": "marks"}, r"'marks'.*'tokens'.*'loss_mask'"),
        (SFTDataset, LABELLED, {"label_key": "wanted"}, "'wanted'"),
        (PreferenceDataset, PAIRS, {"layout": "both"}, "'both'"),
        (PreferenceDataset, PAIRS, {"labels": "none"}, "labels"),
        (PreferenceDataset, [{"chosen": [1], "chosen_mask": [1]}], {}, "preferences"),
        (PromptDataset, [{"tokens": [1]}], {}, "prompts"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_is_refused(tmp_path: Path, kind: Any, given: Any, options: Any, named: str) -> None:
    store = records_made.store(tmp_path / "store", given) if isinstance(given, list) and given else given
    with pytest.raises(ConfigError, match=named):
        kind(store, **options)


def test_lists_and_other_dtypes_are_taken() -> None:
    assert Grid.of([2, 1], 2, "right").filled([[0.5, 1], [2]], 0, np.float32).tolist() == [[0.5, 1], [2, 0]]
    with pytest.raises(ConfigError, match=r"1.*3.*tokens"):
        Grid.of([2, 3], 2, "right")


def test_widths() -> None:
    assert [Collation(multiple_of=8).width(longest) for longest in (0, 1, 8, 9)] == [0, 8, 8, 16]
    assert Collation(max_length=32, pad_to="max_length").width(3) == 32
    assert Collation(max_length=30, multiple_of=8).width(30) == 32, "a multiple may be above the longest allowed"


def test_what_is_kept() -> None:
    values = np.arange(5)
    right = Collation(max_length=3, over_long="truncate_right")
    left = Collation(max_length=3, over_long="truncate_left")
    assert right.cut(values).tolist() == [0, 1, 2]
    assert left.cut(values).tolist() == [2, 3, 4]
    assert left.cut(values[:2]).tolist() == [0, 1]
    assert right.kept(np.array([2, 3, 9])).tolist() == [2, 3, 3]
    assert Collation().kept(np.array([9])).tolist() == [9]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"over_long": "cut"}, r"over_long.*'cut'.*'error'.*'truncate_right'"),
        ({"pad_to": "longer"}, r"pad_to.*'longer'"),
        ({"padding_side": "top"}, r"padding_side.*'top'"),
        ({"max_length": 0}, r"max_length.*0.*1"),
        ({"multiple_of": 0}, r"multiple_of.*0.*1"),
        ({"pad_to": "max_length"}, "max_length"),
        ({"over_long": "truncate_left"}, "max_length"),
        ({"max_length": 10, "multiple_of": 8, "pad_to": "max_length"}, r"10.*8"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Collation(**options)
