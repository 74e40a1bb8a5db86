# `make quickstart` on a bare machine: builds .venv, installs exactly constraints.txt, trains a small model
# and writes a report. Nothing but `make browser` installs anything outside .venv. Every target sets up what
# it needs, once.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell \
	$(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $(p))))
VENV ?= .venv
VLLM ?= .venv-vllm
OPENENV ?= .venv-openenv
VERL ?= .venv-verl
LLAMA_FACTORY ?= .venv-llama-factory
MS_SWIFT ?= .venv-ms-swift
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
DECLARED := pyproject.toml constraints.txt
DISTRIBUTIONS := $(wildcard environments/*/pyproject.toml)

CHECKED := tests/test_layers.py tests/test_house.py tests/core tests/objectives tests/selection tests/data
ALL ?= lint docs browser test slow vllm verl trainers openenv quickstart smartsnap

.PHONY: quickstart smartsnap check test slow goldens vllm verl trainers openenv docs browser lint format clean all

quickstart: $(VENV)/.stamp-core
	$(BIN)/selfverify quickstart

# An agent of 1.3 million parameters learns to prove what it did on a phone; the report shows it before and after.
smartsnap: $(VENV)/.stamp-phone
	$(BIN)/selfverify quickstart smartsnap

# For the inner loop: what needs no model and no server. It takes 56 seconds of processor time, which two cores share.
# mypy is left to `lint`.
check: $(VENV)/.stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q -n 2 --dist loadscope $(CHECKED)

# Three files at a time, each on one thread (`tests/conftest.py`): on two cores, since many tests wait. In the order of
# their names: by the number of their tests, the longest, which have one each, would come last and be waited for.
test: $(VENV)/.stamp-test $(VENV)/.stamp-js
	$(BIN)/python -m pytest -q -n 3 --dist loadscope --no-loadscope-reorder

slow: $(VENV)/.stamp-test $(VENV)/.stamp-js $(VENV)/.stamp-docs
	$(BIN)/python -m pytest -q -m slow

# Compares the commit before the redesign with the working tree, value by value: `make goldens GOLDENS="g1 g6"`.
goldens: $(VENV)/.stamp-test
	PYTHONPATH=tests $(BIN)/python -m goldens $(GOLDENS)

# What takes a real vLLM, here its build for CPUs, in an environment of its own: it needs an older transformers.
vllm: $(VLLM)/.stamp
	$(VLLM)/bin/python -m pytest -q -m slow tests/with_vllm

# The methods on verl's own trainer, in an environment of its own: verl needs an older transformers than we do.
verl: $(VERL)/.stamp
	PYTHONPATH=src:environments/phone:tests/with_verl VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=cpu_platform,cpu_engine $(VERL)/bin/python -W ignore -m pytest -q --noconftest -m 'slow or not slow' tests/with_verl

# Our exports of VTS-V's data, opened by LLaMA-Factory and by ms-swift, each in an environment of its own.
trainers: $(LLAMA_FACTORY)/.stamp $(MS_SWIFT)/.stamp $(VENV)/.stamp-test
	$(BIN)/python tests/with_trainers/write_exports.py build/exports
	EXPORTS=build/exports HF_HUB_OFFLINE=1 $(LLAMA_FACTORY)/bin/python -W ignore -m pytest -q --noconftest tests/with_trainers/test_llama_factory.py
	EXPORTS=build/exports HF_HUB_OFFLINE=1 $(MS_SWIFT)/bin/python -W ignore -m pytest -q --noconftest tests/with_trainers/test_ms_swift.py

# OpenEnv's own package against our server and client, in an environment of its own: it needs an older mcp.
openenv: $(OPENENV)/.stamp
	PYTHONPATH=src:tests $(OPENENV)/bin/python -m pytest -q --noconftest tests/connectors/test_openenv_package.py

# The pages under docs/ as a site in site/index.html; a broken link is an error.
docs: $(VENV)/.stamp-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

# What the tests of the gateway's page and of pages as environments drive; without it `make test` skips them. The
# one target that installs anything outside .venv, and only where apt-get and the right to use it are there.
browser: $(VENV)/.stamp-test
	@if command -v chromedriver >/dev/null; then chromedriver --version; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver; \
	else echo "install Chromium and its driver (Debian: apt-get install chromium chromium-driver)"; exit 1; fi

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# All of them, one after another, in hours; `make all ALL="lint test"` takes some. What fails does not keep the
# others from running. At the end a table says how each has ended, and the exit status is that of a failure if
# one has failed.
all:
	@failed=0; table="target       result   minutes"; \
	for target in $(ALL); do \
		echo "--- make $$target"; start=$$(date +%s); result=passed; \
		$(MAKE) --no-print-directory $$target || { result=FAILED; failed=1; }; \
		minutes=$$(( ($$(date +%s) - start + 30) / 60 )); \
		table="$$table\n$$(printf '%-12s %-8s %7d' $$target $$result $$minutes)"; \
	done; \
	printf "\n$$table\n"; exit $$failed

format: $(VENV)/.stamp-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "selfverify needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch first and by itself: the pinned build is settled before anything else can ask for another one.
$(VENV)/.stamp-torch: constraints.txt | $(BIN)/python
	$(PIP) torch
	@touch $@

$(VENV)/.stamp-core: $(DECLARED) $(VENV)/.stamp-torch
	$(PIP) -e .
	@touch $@

$(VENV)/.stamp-phone: environments/phone/pyproject.toml $(VENV)/.stamp-core
	$(PIP) -e ./environments/phone
	@touch $@

$(VENV)/.stamp-test: $(DECLARED) $(DISTRIBUTIONS) $(VENV)/.stamp-core
	$(PIP) -e '.[test]' $(addprefix -e ./,$(DISTRIBUTIONS:/pyproject.toml=))
	@touch $@

# The gateway is also tested with OpenAI's JavaScript client, where there is npm to install it.
$(VENV)/.stamp-js: tests/serving/js/package-lock.json | $(BIN)/python
	@if ! command -v npm >/dev/null; then echo "npm is not installed: the JavaScript client is not tested"; \
	elif npm ci --silent --prefix $(<D); then touch $@; else echo "npm failed: the JavaScript client is not tested"; fi

# torch with what it needs, then exactly the listed packages, since vLLM asks for more than is used here; and the
# phone, by which recipes and policies of its own are found.
$(VLLM)/.stamp: constraints-vllm.txt environments/phone/pyproject.toml tests/with_vllm/sitecustomize.py
	@test -n "$(PYTHON)" || { echo "selfverify needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --disable-pip-version-check -c constraints-vllm.txt torch
	$(VLLM)/bin/python -m pip install --disable-pip-version-check --no-deps -r constraints-vllm.txt
	$(VLLM)/bin/python -m pip install --disable-pip-version-check --no-deps -e ./environments/phone
	cp tests/with_vllm/sitecustomize.py "$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@touch $@

# torchvision's usual wheel is linked against CUDA; emptied, this file of it lets the rest be imported on a CPU.
$(VERL)/.stamp: constraints-verl.txt
	@test -n "$(PYTHON)" || { echo "selfverify needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python -m pip install --disable-pip-version-check -c constraints-verl.txt torch
	$(VERL)/bin/python -m pip install --disable-pip-version-check --no-deps -r constraints-verl.txt
	: > "$$($(VERL)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torchvision/_meta_registrations.py"
	@touch $@

# As with verl: these files would load libraries of CUDA.
$(LLAMA_FACTORY)/.stamp $(MS_SWIFT)/.stamp:
	@test -n "$(PYTHON)" || { echo "selfverify needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check torch==2.13.0
	$(@D)/bin/python -m pip install --disable-pip-version-check torch==2.13.0 torchvision==0.28.0 pytest pytest-timeout $(PACKAGES)
	site="$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
		: > "$$site/torchvision/_meta_registrations.py"; test ! -d "$$site/torchaudio" || : > "$$site/torchaudio/__init__.py"
	@touch $@

$(LLAMA_FACTORY)/.stamp: PACKAGES = llamafactory==0.9.5
$(MS_SWIFT)/.stamp: PACKAGES = ms-swift==4.6.0 qwen-vl-utils

$(OPENENV)/.stamp:
	@test -n "$(PYTHON)" || { echo "selfverify needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(OPENENV)
	$(OPENENV)/bin/python -m pip install --disable-pip-version-check openenv==0.10.0 aiohttp pillow pydantic pytest pytest-timeout
	@touch $@

$(VENV)/.stamp-docs: $(DECLARED) $(VENV)/.stamp-core
	$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.stamp-dev: $(DECLARED) $(VENV)/.stamp-test
	$(PIP) -e '.[dev]'
	@touch $@
