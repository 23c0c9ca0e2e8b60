# Every target sets up what it needs: a clean clone needs only Python 3.11+ with venv, and the package registries.
#   PYTHON=/path/to/python   the interpreter to make .venv of (default: the newest found)
#   ARGS="..."               more arguments for pytest, e.g. make test ARGS="tests/model -x"

.DEFAULT_GOAL := help
SHELL := /bin/sh
ARGS ?=

BIN := .venv/bin
# Named after this directory, so that a copied or moved clone does not test the place it came from.
READY := .venv/ready-$(firstword $(shell pwd | cksum))

# Hundreds of tests start Python processes: with what they import compiled once, that costs half.
# Three workers, of which one has Spark: tests wait for processes and deadlines, and meanwhile others use the cores.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 3 --dist loadgroup

.PHONY: help setup demo test check bench soak lock clean force

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything in requirements.lock, and stelae itself (the other targets do it too)

# With PYTHON given the set-up looks each time whether .venv is made of it; otherwise the stamp decides.
$(READY): requirements.lock pyproject.toml tools/setup_venv.py $(if $(PYTHON),force)
	@python=$$(PYTHON='$(PYTHON)' tools/find_python) && PYTHON='$(PYTHON)' "$$python" tools/setup_venv.py $@

demo: $(READY) ## see what stelae does, in three minutes
	@$(BIN)/stelae demo

test: $(READY) ## run all tests, 10 to 20 minutes on 2 cores
	$(PYTEST) $(ARGS)

check: $(READY) ## lint, format, types, and which room may import which
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) ## run every bench/bench_*.py in turn: ratios to peers on the same data
	@for program in bench/bench_*.py; do \
		[ -e "$$program" ] || { echo "bench: there is no bench/bench_*.py"; exit 1; }; \
		echo "== $$program"; $(BIN)/python "$$program" || exit 1; \
	done

soak: $(READY) ## the tests again with many more, and random, examples (long)
	STELAE_PROFILE=soak $(PYTEST) $(ARGS)

lock: $(READY) ## write requirements.lock anew from pyproject.toml (add UPGRADE=1 for the newest versions)
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock" \
		$(if $(UPGRADE),--upgrade) --quiet -o requirements.lock

clean: ## remove .venv and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse build dist
	find src tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} +
