"""AstrAI's tests at its commit 7348bac of 2026-06-19, which still had HDF5; see `suites.astrai`."""

from __future__ import annotations

from suites.astrai import pytest_load_initial_conftests as pytest_load_initial_conftests
from suites.suite import Suite

SUITE = Suite(name="astrai_seed", tests=("tests/data",), options=("--continue-on-collection-errors",))
