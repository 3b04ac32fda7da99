"""Fixtures for several files of this room."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from interop import megatron_peer


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one, which Megatron's builder asks for its rank."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def megatron() -> Any:
    """The module of megatron-core's indexed files."""
    return megatron_peer.core("datasets.indexed_dataset")


@pytest.fixture(scope="session")
def hf() -> Any:
    """Transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        _ = transformers.DataCollatorWithFlattening  # looked up here, where its imports may warn
    transformers.logging.set_verbosity_error()
    return transformers


@pytest.fixture(scope="session")
def hf_stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores of `hf_training`."""
    import hf_training

    made = tmp_path_factory.mktemp("stores")
    hf_training.make_stores(made)
    return made


@pytest.fixture
def calm() -> Iterator[None]:
    """Transformers warns of its own ways; and threads take longer for matrices as small as those of the tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield
    torch.set_num_threads(threads)
