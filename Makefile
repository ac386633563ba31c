PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# modules are compiled when they are first imported, for all processes after that one
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo serve test test-newest test-lowest bench notebooks docs lint constraints clean

demo: .venv/installed
	$(BIN)/python -m dflash run demo "Write a Python function named is_prime that checks whether a number is prime." --no-think

serve: .venv/installed-serve
	$(BIN)/python -m dflash.serve demo

test: .venv/installed-dev
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -p no:benchmark

bench: .venv/installed-dev
	$(BIN)/python -m dflash bench demo
	$(BIN)/python -m pytest benchmarks --benchmark-only

# training needs torch, which is not installed for the tests: without it that notebook says so and is left as it is
notebooks: .venv/installed-dev
	$(INSTALL) nbconvert ipykernel
	for notebook in notebooks/*.ipynb; do \
		case $$notebook in *-train-*) PYTHONPATH=examples $(BIN)/python -c "import train_draft.__main__" || continue;; esac; \
		$(BIN)/python -m nbconvert --to notebook --execute --inplace --ClearMetadataPreprocessor.enabled=True $$notebook || exit 1; \
	done

docs: .venv/installed-dev
	$(INSTALL) --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# the part of the tests that uses other packages, with the newest and with the oldest versions that pyproject.toml allows
FAST := tests/test_dependencies.py tests/test_distribution.py tests/test_imports.py tests/test_portable.py tests/cli tests/evaluation tests/generation tests/model/gguf tests/model/loading \
	tests/model/text tests/model/test_demo.py tests/kernels/test_norm.py tests/serve/admin tests/serve/anthropic tests/serve/openai tests/serve/responses \
	tests/serve/startup tests/serve/test_[a-e]*.py tests/serve/test_leaving.py tests/serve/test_unread.py
test-newest test-lowest: test-%:
	rm -rf .venv-$*
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-$*/bin/uv pip install --quiet --python .venv-$* --resolution $(if $(filter lowest,$*),lowest-direct,highest) --editable ".[dev]"
	.venv-$*/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile -p no:benchmark $(FAST)

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/house_lint.py
	$(BIN)/python tools/sizes.py
	$(BIN)/mypy

# newest versions that fit pyproject.toml, for development and CI; torch is left out, whose builds for CPUs and GPUs differ
constraints:
	uv pip compile pyproject.toml --universal --python-version 3.11 --extra dev --extra docs --extra notebooks --extra ray --extra cuda13 --no-annotate --upgrade --output-file constraints.txt

clean:
	rm -rf .venv .venv-newest .venv-lowest build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --editable .
	touch $@

.venv/installed-serve: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --editable ".[serve]"
	touch $@ .venv/installed

.venv/installed-dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --editable ".[dev]"
	touch $@ .venv/installed .venv/installed-serve
