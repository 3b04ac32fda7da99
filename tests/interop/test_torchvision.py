"""The recipe of docs/how-to.md for torchvision's transforms, with torchvision itself."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import headrace
import media_stores_made
from headrace.compat.energon import CustomTransform, MergeTransform
from headrace.errors import ConfigError
from headrace.loader import Ranks, Reading
from headrace.samples.media import CaptioningSample, SampleDecoder
from headrace.stores.tar.writer import TarWriter
from interop.suites.suite import load_torchvision

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore:This DataLoader will create")]

PAGE = Path(__file__).parents[2] / "docs" / "how-to.md"


@pytest.fixture(scope="module")
def v2() -> Any:
    """``torchvision.transforms.v2``."""
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    load_torchvision()
    from torchvision.transforms import v2

    return v2


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> headrace.MediaDataset:
    place = tmp_path_factory.mktemp("torchvision") / "shard-000.tar"
    with TarWriter(place) as tar:
        for number in range(24):
            jpeg = media_stores_made.jpeg(40 + number, 37, seed=number)
            tar.add(f"{number:03d}", {"jpg": jpeg, "txt": b"a picture"})
    return headrace.MediaDataset.open(
        str(place),
        sample_type=CaptioningSample,
        field_map={"image": "jpg", "caption": "txt"},
        decoder=SampleDecoder(image_decode="pilrgb"),
    )


def recipe(transform: Any) -> Any:
    """The function ``with_torch`` of the page, of a transform."""
    text = PAGE.read_text(encoding="utf-8")
    [function] = re.findall(r"^def with_torch\(.*?(?=^\S)", text, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(f"from dataclasses import replace\nimport torch\n{function}", namespace)
    return namespace["with_torch"](transform)


def composed(v2: Any) -> Any:
    steps = [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2), v2.ToImage()]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)])


def test_crops_are_the_same_after_a_resume_on_other_ranks(v2: Any, pictures: headrace.MediaDataset) -> None:
    augmented = headrace.MapDataset(pictures, recipe(composed(v2)), seeded=True)
    run = headrace.Run(augmented, global_batch_size=8, order=headrace.Order(seed=1), epochs=2)
    loader = headrace.Loader(run, micro_batch_size=8, reading=Reading(num_threads=0))
    before = torch.random.get_rng_state()
    batches = iter(loader)
    first = next(batches)["image"]
    state = loader.state_dict()
    rest = [batch["image"] for batch in batches]
    assert torch.equal(torch.random.get_rng_state(), before), "the generator of the training is as it was"
    assert first.shape == (8, 3, 32, 32)
    assert first.dtype == torch.float32
    for rank in range(2):
        resumed = headrace.Loader(run, micro_batch_size=4, ranks=Ranks(rank, 2, agree=False))
        resumed.load_state_dict(state)
        mine = [batch["image"] for batch in resumed]
        assert len(mine) == len(rest) == 5
        for found, expected in zip(mine, rest, strict=True):
            assert torch.equal(found, expected[4 * rank : 4 * rank + 4])
    assert not torch.equal(rest[2], rest[-1]), "another epoch draws other crops"


class Halved(CustomTransform):
    def apply_transform(self, matrix: Any, dst_size: Any) -> Any:
        return self.scale(0.5, 0.5) @ matrix, dst_size // 2, None


def test_energons_merged_transforms_are_torchvisions(v2: Any) -> None:
    """One resampling gives about what the transforms give one after another: nearly the same pixels."""
    from torchvision import transforms

    gradient = Image.linear_gradient("L").resize((160, 120)).convert("RGB")
    bilinear = transforms.InterpolationMode.BILINEAR
    for drawn in (transforms.RandomRotation(30, interpolation=bilinear), transforms.RandomPerspective(0.3, p=1.0)):
        torch.manual_seed(1)
        found = MergeTransform([Halved(), drawn])(gradient)
        torch.manual_seed(1)
        expected = transforms.Compose([transforms.Resize((60, 80)), drawn])(gradient)
        assert found.size == expected.size == (80, 60)
        apart = v2.functional.pil_to_tensor(found).int() - v2.functional.pil_to_tensor(expected).int()
        assert apart.abs().float().mean() < 3
    with pytest.raises(ConfigError, match="CenterCrop"):
        MergeTransform([transforms.CenterCrop(8)])
