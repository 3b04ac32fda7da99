"""A folder such as people have: stores of every kind, a mix, the files of two runs, states and metrics.

data/*.jsonl, data/talks.jsonl, photos/         inputs, made of the documentation and of drawn shapes
stores/web, stores/code, stores/chats           tokens, with a tokeniser trained on the inputs
stores/captions                                 tar shards of pictures with captions
mix.yaml, run.json, other.json                  a mix, a run with two edits, and the run without the last of them
state-100.json, state-200.json, metrics-*.jsonl
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import corpora
import headrace
import warm
from headrace.preparing import PrepareOptions, TokenOptions, prepare
from headrace.preparing.options import ErrorOptions, RecordOptions
from headrace.preparing.shards import ShardOptions, prepare_shards
from headrace.samples.recipe import parse_recipe
from headrace.tracing import save_run
from tars_made import members_of, write_tar

ROOT = Path(__file__).parents[1]
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{% if message.role == 'assistant' %}{% generation %}"
    "{{ message.content }}<|end|>{% endgeneration %}{% else %}{{ message.content }}<|end|>{% endif %}\n{% endfor %}"
)
HOSTILE = '</div><script>window.pwned=1</script><img src=x onerror="window.pwned=2">\u202e{{7*7}}&amp;'
"""What data may hold: markup, a template, and a character that turns the direction of text."""


def folder(root: Path) -> Path:
    """Make all of it."""
    root.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(root):
        _inputs()
        _stores()
        _runs()
        metrics(Path())
    return root


def _inputs() -> None:
    Path("data/code").mkdir(parents=True)
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
    paragraphs = [
        part for text in texts.values() for part in re.split(r"\n\n+", text) if len(part) > 80 and "```" not in part
    ]
    for number in range(3):
        rows = [{"id": f"docs-{at:04d}", "text": text} for at, text in enumerate(paragraphs[:360]) if at % 3 == number]
        Path(f"data/docs-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with Path("data/docs-0.jsonl").open("a") as file:
        file.write('{"id": "broken", "text": 5}\n' + json.dumps({"id": "hostile", "text": HOSTILE}) + "\n")
    sources = sorted((ROOT / "src" / "headrace" / "io").glob("*.py"))
    functions = [part for path in sources for part in re.split(r"\n\n\n", path.read_text(encoding="utf-8"))]
    Path("data/code/io.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in functions[:120]))
    talks = [
        {
            "messages": [
                {"role": "system", "content": "You answer questions about data loaders."},
                {"role": "user", "content": f"What does this say?\n{text[:200]}"},
                {"role": "assistant", "content": text[200:420] or "Nothing."},
            ]
        }
        for text in paragraphs[:60]
    ]
    Path("data/talks.jsonl").write_text("".join(json.dumps(one) + "\n" for one in talks))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<|endoftext|>", "<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(paragraphs[:200], trainer)
    Path("model").mkdir()
    tokenizer.save("model/tokenizer.json")
    Path("model/tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "eos_token": "<|end|>", "bos_token": "<|endoftext|>"})
    )
    Path("photos").mkdir()
    for number in range(24):
        name = "hostile" if number == 23 else f"{number:03d}"
        Path(f"photos/{name}.jpg").write_bytes(picture(number))
        shape = ("circle", "square", "bar")[number % 3]
        caption = HOSTILE if number == 23 else f"a {shape} on a field of colour, number {number}"
        Path(f"photos/{name}.txt").write_text(caption, encoding="utf-8")


def picture(number: int) -> bytes:
    """A JPEG with one shape."""
    rng = np.random.default_rng(number)
    ground, shape = (tuple(map(int, rng.integers(40, 220, 3))) for _ in range(2))
    image = Image.new("RGB", (160 + 20 * (number % 4), 120), ground)
    draw = ImageDraw.Draw(image)
    x, y = map(int, rng.integers(10, 50, 2))
    [draw.ellipse, draw.rectangle, draw.rounded_rectangle][number % 3]((x, y, x + 70, y + 55), fill=shape)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=88)
    return stream.getvalue()


def _stores() -> None:
    tokens = TokenOptions(append_eod=True)
    web = PrepareOptions(
        tokens=tokens, workers=1, records=RecordOptions(id_field="id"), errors=ErrorOptions(on_error="skip")
    )
    prepare([Path("data/docs-0.jsonl"), Path("data/docs-1.jsonl"), Path("data/docs-2.jsonl")], Path("stores/web"),
                 tokenizer=Path("model"), options=web)  # fmt: skip
    code = PrepareOptions(tokens=tokens, workers=1)
    prepare([Path("data/code")], Path("stores/code"), tokenizer=Path("model"), options=code)
    recipe = parse_recipe(json.dumps({"type": "sft", "inputs": "data/talks.jsonl", "tokenizer": "model"}))
    prepare([], Path("stores/chats"), recipe=recipe, options=PrepareOptions(workers=1))
    prepare_shards([Path("photos")], Path("stores/captions"), options=ShardOptions(workers=1))


def _runs() -> None:
    Path("mix.yaml").write_text(MIX)
    data = {name: headrace.WindowDataset(headrace.open(f"stores/{name}"), seq_len=64) for name in ("web", "code")}
    blend = headrace.Blend(data, weights={"web": 3, "code": 1})
    run = headrace.Run(blend, global_batch_size=16, order=headrace.Order(seed=1), samples=16 * 400)
    save_run(run.edit(150, weights={"web": 1, "code": 1}, reason="more code"), "other.json")
    edited = run.edit(150, weights={"web": 1, "code": 1}, reason="more code")
    edited = edited.edit(300, weights={"web": 9, "code": 1}, reason="the loss of text went up")
    save_run(edited, "run.json")
    packing = headrace.Packing(seq_len=512, over_long="truncate_right")
    packs = headrace.PackedSequenceDataset(headrace.open("stores/chats"), packing)
    save_run(headrace.Run(packs, global_batch_size=8, samples=80), "chats.json")
    captions = headrace.MediaDataset.open("stores/captions")
    save_run(headrace.Run(captions, global_batch_size=8, samples=240), "captions.json")
    for step in (100, 200):
        loader = headrace.Loader(edited, micro_batch_size=16, ranks=headrace.loader.Ranks(0, 1))
        loader.start_at(16 * step)
        Path(f"state-{step}.json").write_text(json.dumps(loader.state_dict()))


NAME = '<img src=x onerror="window.pwned=3">'
"""A name that is markup."""


def hostile(root: Path) -> None:
    """Write stores, a run and metrics in which all that can be named is named so, and all that has a text has it."""
    place = root / f"a {NAME}"
    corpora.make(place / "tokens", 1, 12)
    stream = io.BytesIO()
    Image.new("RGB", (20, 10), (9, 90, 200)).save(stream, "PNG")
    parts = {
        "png": stream.getvalue(),
        "txt": HOSTILE.encode(),
        "html": b"<script>window.pwned=4</script>",
        "svg": b"<svg onload='window.pwned=5'/>",
        "json": json.dumps({NAME: HOSTILE}).encode(),
        "jpg": b"not a picture <script>",
    }
    write_tar(place / "samples" / "a.tar", members_of([(f"0{NAME.replace('.', '')}", parts)]))
    windows = headrace.WindowDataset(headrace.open(str(place / "tokens" / "shard-0")), seq_len=8)
    blend = headrace.Blend({NAME: windows, "b": windows}, weights={NAME: 1, "b": 1})
    run = headrace.Run(blend, global_batch_size=4, samples=40)
    save_run(run.edit(3, weights={NAME: 2, "b": 1}, reason=HOSTILE), place / "run.json")
    numbers = {"step": 1, "position": 8, "rank": 0, "seconds": 1.0, "samples": 4}
    report = {**numbers, f"faults/{NAME}": 1.0, f"mix/{NAME}": 1.0, f"plan/{NAME}": 1.0}
    lines = [report, {"rank": 0, "verdict": f"data-bound: {NAME}"}]
    (place / "metrics-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def metrics(place: Path, *, steps: int = 60, first: int = 0) -> None:
    """Reports of four ranks, of which rank 3 waits for decoding."""
    for rank in range(4):
        rng = np.random.default_rng(rank)
        with (place / f"metrics-{rank}.jsonl").open("a") as file:
            for step in range(first, first + steps):
                wait = {name: float(value) for name, value in zip(STAGES, rng.random(6) * 0.004, strict=True)}
                wait["decode"] *= 60 if rank == 3 else 1
                report: dict[str, Any] = {
                    "step": step, "position": 16 * (step + 1), "rank": rank, "seconds": 1.0, "start_s": 0.0,
                    "samples": 4, "wait_s": sum(wait.values()), **{f"wait_{name}_s": s for name, s in wait.items()},
                    "wait_share": sum(wait.values()), "queue_depth": 2, "replaced_workers": 0, "bytes": 4096,
                    "bytes_per_s": 4096.0, "tokens": 256, "tokens_per_s": 256.0, "fill": 0.97,
                    "mix/web": 0.76, "plan/web": 0.75, "mix/code": 0.24, "plan/code": 0.25,
                    "epochs/web": 0.1 * step, "epochs/code": 0.3 * step,
                    **({"faults/DecodeError in read": 3.0} if rank == 3 else {}),
                    **({"slowest_shard/stores/captions/shard-000000.tar": 4.2} if rank > 1 else {}),
                }  # fmt: skip
                file.write(json.dumps(report) + "\n")


STAGES = ("read", "decode", "encode", "pack", "collate", "hand_over")
MIX = """__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {weight: 3, name: web, path: stores/web, windows: {window_tokens: 64}}
      - {weight: 1, name: code, path: stores/code, windows: {window_tokens: 64}}
"""


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory, warm_process: warm.Warm) -> Path:
    """Nothing may change it."""
    with warm.workers(warm_process):
        return folder(tmp_path_factory.mktemp("ui") / "demo")


@pytest.fixture
def inside(demo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tests run in the folder, as a user would."""
    monkeypatch.chdir(demo)
    return demo
