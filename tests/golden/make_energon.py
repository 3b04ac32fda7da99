"""Lets Energon prepare the shards of `tests/energon_made.py`, and keeps what it wrote beside them.

    python make_energon.py folder       with megatron-energon; the folder is made; copy it to energon/

The tars are made again by whoever reads this; kept are ``.nv-meta`` (of ``index.sqlite`` its schema and its rows, in
``index.json``), every ``.tar.idx``, ``lines.jsonl.idx``, a join index with the rows as Energon wrote them, and what
Energon reads of pieces of YAML.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from energon_made import LINES, PRIMARY, SECONDARY, write_shards

UUIDS = {"primary": "11111111-1111-4111-8111-111111111111", "secondary": "22222222-2222-4222-8222-222222222222"}
JOIN = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    join:
      - path: ./primary
        split_part: joined
      - path: ./secondary
        split_part: train
    joiner:
      __module__: megatron.energon
      __class__: CaptioningSample
"""
YAML = [
    "a: ~\nb: 'no'\nc: no\nd: No\ne: 1_0\nf: 0x10\ng: 1e3\nh: 1.\ni: .inf\nj: +3\nk: 007\nl: .5\nm: e\nn: -1.5E3\n",
    "a: |\n  12\nb: >\n  12\n  13\n",
    "a: &x 12\nb: *x\n",
    "a: !!str 12\n",
    "a: &m {k: 1}\nb: *m\nc:\n  <<: *m\n",
    "- 1\n- [2, 3]\n- {a: yes}\n",
    "12",
    "1: 2\ntrue: 3\n",
    "a: 1 # c\n",
    "a: x y\n  z\n",
    "? a\n: 1\n",
    "a: []\nb: {}\n",
    "a: 1\na: 2\n",
    'a: "1\\n2"\n',
    "a: 1:30\nb: 2020-01-01\nc: on\nd: off\ne: y\nf: NULL\n",
    "a: \n- 1\n- 2\n",
    "'a b': 1\n",
    "a: nan\nb: infinity\nc: 1e\nd: 1_0.5\n",
    "a: ''\n",
]


def main(root: Path) -> None:
    for name, shards in (("primary", PRIMARY), ("secondary", SECONDARY)):
        write_shards(root / name, shards)
    (root / "lines.jsonl").write_bytes(LINES)
    run = ["energon", "prepare", "--num-workers", "1", "--non-interactive", "--skip-dataset-yaml"]
    primary = ["--split-parts", "train:shards/.*", "--split-parts", "joined:shards/b.*"]
    prepare([*run, "--media-metadata-by-extension", *primary, str(root / "primary")])
    prepare([*run, "--split-parts", "train:c.*", str(root / "secondary")])
    prepare(["energon", "prepare", str(root / "lines.jsonl")])
    for name, uuid in UUIDS.items():  # which are random
        (root / name / ".nv-meta/index.uuid").write_text(uuid)
        path = root / name / ".nv-meta/index.sqlite"
        (root / name / ".nv-meta/index.json").write_text(json.dumps(dump(path), indent=1, ensure_ascii=False) + "\n")
        crude = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
        (root / name / ".nv-meta/dataset.yaml").write_text(crude)
    (root / "join.yaml").write_text(JOIN)
    prepare(["energon", "prepare", str(root / "join.yaml"), "--split-parts", "train"])
    for name in UUIDS:
        (root / name / ".nv-meta/index.sqlite").unlink()
        for tar in (root / name).rglob("*.tar"):
            tar.unlink()
    (root / "lines.jsonl").unlink()

    from megatron.energon.eyaml import load_yaml

    (root / "yaml.json").write_text(json.dumps([[text, load_yaml(text.encode())] for text in YAML], indent=1) + "\n")


def prepare(command: list[str]) -> None:
    subprocess.run([str(Path(sys.executable).with_name(command[0])), *command[1:]], check=True)


def dump(path: Path) -> dict[str, object]:
    with sqlite3.connect(path) as base:
        schema = base.execute("select name, sql from sqlite_master where sql is not null order by name").fetchall()
        schema = [[name, " ".join(sql.split())] for name, sql in schema if name != "sqlite_sequence"]
        tables = [name for name, sql in schema if sql.startswith("CREATE TABLE")]
        rows = {name: base.execute(f"select * from {name} order by rowid").fetchall() for name in tables}
        rows["media_filters"] = [row[:3] for row in rows.get("media_filters", [])]  # the rest is the time
        pragmas = {
            name: base.execute(f"pragma {name}").fetchone()[0] for name in ("page_size", "journal_mode", "user_version")
        }
    base.close()
    return {"pragmas": pragmas, "schema": schema, "rows": rows}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    main(folder)
