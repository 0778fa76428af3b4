# One entry for each thing that a contributor does. `make setup` is done once, by itself, before the others.

VENV ?= .venv
PYTHON ?= python3
TORCH ?= 2.13.0
# A package index to take PyTorch from instead of pip's own, e.g. one with CPU-only wheels.
TORCH_INDEX ?=
WORKERS ?= 2
CACHE ?= $(CURDIR)/build/executables

BIN := $(abspath $(VENV))/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet
MINOR := $(word 1,$(subst ., ,$(TORCH))).$(word 2,$(subst ., ,$(TORCH)))
SETUP := $(VENV)/.setup-torch-$(TORCH)
PACKAGES := $(VENV)/.packages-torch-$(TORCH)
# Tests and benchmarks never take a chip that another process may be using.
EMULATED := TORCH_TPU_PLATFORM=cpu TORCH_TPU_CACHE_DIR=$(CACHE)

.PHONY: setup demo test sweep bench lint wheel clean

setup: $(SETUP)

# PyTorch goes first, on its own: the extension is compiled against it, so it must be there and must not change after.
$(PACKAGES):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH)
	$(PIP) 'setuptools>=77.0.3' wheel ninja
	rm -f $(VENV)/.setup-torch-* $(VENV)/.packages-torch-*
	touch $@

$(SETUP): $(PACKAGES) pyproject.toml setup.py $(wildcard csrc/*.cpp csrc/*.h)
	PATH=$(BIN):$$PATH $(PIP) --no-build-isolation --editable '.[test,demo]'
	touch $@

demo: setup
	$(BIN)/python -m demo

test: setup
	$(EMULATED) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

# The property tests at large, and the operator sweeps: hours rather than minutes.
sweep: setup
	$(EMULATED) TORCH_TPU_VIEW_EXAMPLES=5000 TORCH_TPU_DEFERRED_EXAMPLES=1000 $(BIN)/python -m pytest -n $(WORKERS) \
		tests/test_views.py tests/test_deferred.py
	$(EMULATED) $(BIN)/python -m tests.sweep

bench: setup
	$(EMULATED) $(BIN)/python -m benchmarks

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

# One wheel per PyTorch minor version: `make wheel TORCH=2.14.1 VENV=.venv-2.14` makes the one for 2.14.
wheel: $(PACKAGES)
	PATH=$(BIN):$$PATH TORCH_TPU_WHEEL_FOR_RELEASE=1 $(BIN)/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	@ls dist/*torch$(MINOR)*.whl

clean:
	rm -rf build dist *.egg-info torch_tpu/_C*.so torch_tpu/_built_with.py $(VENV)/.setup-torch-*
