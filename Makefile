# What the project makes, from nothing but python3 and make. Each target does its own set-up and is quick when
# nothing it depends on has changed. `make help` lists the targets.

SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Only notebooks are worth running side by side; `make book` asks for it by itself.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install --no-compile --progress-bar off --disable-pip-version-check
UV := $(BIN)/uv pip install --python $(BIN)/python --no-deps
# The extras that the book and its tests need.
LOCKED := quantised gguf adapters notebooks book test
# Models whose pages the book carries, and the notebooks that are run for each. The nano models ship with the project;
# the weights of the other come with a Python package, and what was measured of it lies in data/measurements.
TRAINED_HERE := nano-neox
PACKAGED := smollm2-135m
LANGUAGE_MODELS := $(PACKAGED) $(TRAINED_HERE)
VISION_MODELS := nano-vit nano-vit-sd
VISION_NOTEBOOKS := vision
# What needs several steps of one training, or was measured of no other model yet.
STEP_NOTEBOOKS := emergence card
# What another model that was trained here answers otherwise.
OTHER_MODEL := nano-llama
OTHER_NOTEBOOKS := dynamics prompts lenses
# Public decoders whose weights do not ship: their numbers are in data/decoders.csv. The largest has fewer prompts.
DECODERS := gemma3-270m qwen2.5-coder-0.5b qwen2.5-coder-1.5b
DECODER_NOTEBOOKS := $(LANGUAGE_NOTEBOOKS) card
FEWER := qwen2.5-coder-1.5b
# Of these, the ones of which a notebook's measurement ships, separated by commas.
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)
COMMA := ,
beside = $(subst $(SPACE),$(COMMA),$(strip $(foreach model,$(DECODERS),$(if $(wildcard data/measurements/$(model)/$(1).tar.xz),$(model)))))
# What is about many models at once is run once.
SUITE_NOTEBOOKS := generalization edits
# Set by continuous integration: a missing Chromium is then an error.
REQUIRE_BROWSER ?=
# Which tests run: those of `make test`, or all of them in one go, which `make test-all` asks for.
THOROUGH ?= not thorough

# The kernel of a notebook is the environment's own, whatever kernels the user has installed; the one called "warm" is
# that kernel in a fork.
export JUPYTER_PREFER_ENV_PATH := 1
export JUPYTER_PATH := $(CURDIR)/workflow$(addprefix :,$(JUPYTER_PATH))
# Without this the debugger prints a warning about frozen modules into the log of every notebook.
export PYDEVD_DISABLE_FILE_VALIDATION := 1
export PYTHONUNBUFFERED := 1
# Where this is set, each of some hundred processes would compile torch and transformers for itself, 15 s every time.
unexport PYTHONDONTWRITEBYTECODE

LIBRARY := $(shell find coupling_lib companion -name '*.py' -not -path 'companion/training/*')
PROMPTS := $(shell find data/prompts -type f 2>/dev/null)
TABLES := $(wildcard data/*.csv) $(shell find data/measurements -type f 2>/dev/null)
MODELS := $(LANGUAGE_MODELS) $(OTHER_MODEL) $(VISION_MODELS)
CHECKPOINTS := $(foreach model,$(MODELS),$(shell find data/checkpoints/$(model) -type f 2>/dev/null))
NOTEBOOKS := $(patsubst notebooks/%.ipynb,%,$(wildcard notebooks/*.ipynb))
LANGUAGE_NOTEBOOKS := $(filter-out $(VISION_NOTEBOOKS) $(SUITE_NOTEBOOKS) $(STEP_NOTEBOOKS),$(NOTEBOOKS))
# Begun last, vision and the other model's lenses, a minute each, would leave a core idle.
EXECUTED := $(foreach model,$(VISION_MODELS),$(VISION_NOTEBOOKS:%=results/$(model)/%.ipynb)) \
  $(OTHER_NOTEBOOKS:%=results/$(OTHER_MODEL)/%.ipynb) \
  $(foreach model,$(LANGUAGE_MODELS),$(LANGUAGE_NOTEBOOKS:%=results/$(model)/%.ipynb)) \
  $(foreach model,$(TRAINED_HERE),$(STEP_NOTEBOOKS:%=results/$(model)/%.ipynb)) \
  $(SUITE_NOTEBOOKS:%=results/suite/%.ipynb)
# How many notebooks, or processes of tests, run at the same time, each on one core.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# `nproc` says 1 to a make below this one, where each process has one thread.
export JOBS
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
# What every notebook and page imports, for 8 s if it does so itself. Here one process does, and each is a fork of it.
LARGE := torch nnsight transformers.modeling_utils transformers.models.llama.modeling_llama
# Not pandas, nor what imports it: it looks where it is imported whether its tables are shown in a terminal.
LARGE_TOO := sympy scipy.stats scipy.optimize matplotlib.figure papermill.cli ipykernel.ipkernel
WARM := OMP_NUM_THREADS=1 $(BIN)/python workflow/warm.py over "$(LARGE) $(LARGE_TOO)"
RUN := OMP_NUM_THREADS=1 $(BIN)/python workflow/warm.py run
BOOK := _config.yml _toc.yml $(shell find book -type f -not -name '*.pyc')

# A sweep over many models: its configuration, where it runs (local or slurm), and more for Snakemake.
CONFIG ?= workflow/config.yaml
PROFILE ?= local
MORE ?=
SWEEP_READY := .venv-sweep/.ready
BENCH_READY := .venv-bench/.ready

.PHONY: help book pdf film links test test-all thorough families portable spreads sweep sweep-plan test-cluster bench calibration faults mutants golden \
  suite quality regularised vit-grid decoders notebooks lint \
  audit clean unit browser lock card atlas-check

# On a card the last digits are others; what the book shows of small models is the processor's, as in `tests/conftest.py`.
book families notebooks: export CUDA_VISIBLE_DEVICES :=

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

book: $(READY) ## build the book into _build/html (open _build/html/index.html)
	@mkdir -p results; touch results/.started
	@$(WARM) $(MAKE) --no-print-directory SIDE_BY_SIDE=1 -j$(JOBS) _build/.complete results/book/.conditions
	@echo "the book is in _build/html/index.html"

pdf: book ## print the whole book into _build/transformer-block-coupling.pdf (some minutes; needs Chromium)
	@$(BIN)/python book/pdf.py

film: book ## draw the film of the README and the card of a shared link anew (half a minute)
	@PYTHONPATH="$$PWD" $(BIN)/python book/film.py

links: book ## look up every link of the book to another machine (needs the network)
	@$(BIN)/python $(BIN)/jupyter-book build . --builder linkcheck

# One after the other: side by side the book and the tests are three processes, which two cores run no sooner.
test: lint book unit browser ## lint, build the book, run the tests and read the book in a browser

test-all: $(READY) ## all that `make test` does, with its thorough tests, and every model type of transformers
	@$(MAKE) --no-print-directory thorough families

thorough: $(READY)
	@$(MAKE) --no-print-directory test THOROUGH="(thorough or not thorough)"

families: $(READY) ## try every model type of transformers, tiny and random (some minutes; goes on if stopped)
	@OMP_NUM_THREADS=1 PYTHONPATH="$$PWD" $(BIN)/python tests/support/every_family.py $(TYPES)

portable: $(READY) ## run chosen tests as other machines would: odd folders, one core, other Pythons (6 minutes)
	@workflow/portable.sh

# Of some notebooks alone: make spreads ONLY=depth
spreads: $(READY) ## measure what differs from CPU to CPU, for the comparison of notebooks (two hours; goes on if stopped)
	@$(BIN)/python -m workflow.spreads $(ONLY)

lint: $(READY) ## check code, docstrings and formatting
	@echo "== lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

sweep: $(READY) $(SWEEP_READY) ## measure and draw many models: make sweep CONFIG=my.yaml [PROFILE=slurm]
	@$(BIN)/python -m workflow.sweep --profile="$(PROFILE)" --more="$(MORE)" -- "$(CONFIG)"

sweep-plan: $(READY) ## say what a sweep will take: make sweep-plan CONFIG=my.yaml
	@$(BIN)/python -m workflow.plan -- "$(CONFIG)"

test-cluster: $(READY) $(SWEEP_READY) ## run a sweep through a SLURM cluster of one node, and kill parts of it
	@$(BIN)/python -m pytest -q -s tests/workflow/cluster_trial.py

# More than its name: make card MODEL=nano-neox MORE="-p revision step100 -p prompts 12 -p out card.json"
card: $(READY) ## measure a model and write its card into results/atlas: make card MODEL=nano-neox
	@mkdir -p results/atlas; touch results/atlas/.started
	@$(BIN)/python -m papermill notebooks/card.ipynb results/atlas/card.ipynb -p model "$(MODEL)" $(MORE) --no-progress-bar --log-level WARNING
	@for file in results/atlas/*.json $(MORE); do if [ "$$file" -nt results/atlas/.started ]; then echo "$$file"; fi; done

FILE ?= $(filter-out %.schema.json,$(wildcard data/atlas/*.json))
atlas-check: $(READY) ## check cards of the atlas, all or some: make atlas-check FILE=data/atlas/nano-neox-step1000.json
	@OMP_NUM_THREADS=1 $(BIN)/python -m companion.tables.card_check $(FILE)

notebooks: $(READY) ## execute the committed notebooks anew from their text twins
	@$(BIN)/python workflow/refresh.py

bench: $(READY) $(BENCH_READY) ## measure the library beside the released method and peers (an hour, quiet machine)
	@.venv-bench/bin/python -m benchmarks.peers
	@.venv-bench/bin/python -m benchmarks.speed --out results/benchmarks/speed.json
	@.venv-bench/bin/python -m benchmarks.gpu --out results/benchmarks/gpu.json

# What it writes, book/calibration.csv, is committed.
calibration: $(READY) ## draw data of known truth, and see how often the rule of the verdicts is wrong (ten minutes)
	@OMP_NUM_THREADS=1 PYTHONPATH="$$PWD" $(BIN)/python book/calibration.py --jobs $(JOBS)

KILLS ?= 25
faults: $(READY) ## kill each sweep at random moments, resume and compare: make faults KILLS=25 (a few minutes)
	@OMP_NUM_THREADS=1 COUPLING_KILLS=$(KILLS) $(BIN)/python -m pytest -q tests/coupling_lib/store/test_kills.py

# What the tests catch of changed operators and numbers; two tables of one seed are compared by `compare`.
MUTANTS ?= results/mutants.csv
mutants: $(READY) ## change single operators of the code, and see which changes the tests catch (two hours; goes on if stopped)
	@$(WARM) $(BIN)/python -m workflow.mutants run --jobs $(JOBS) --out "$(MUTANTS)"

# Every number that the book rests on in one file, for a comparison with another: python workflow/golden.py compare OLD NEW
GOLDEN ?= results/golden.txt
golden: $(READY) ## write every number of figures, prose and verdicts into one file: make golden GOLDEN=../before.txt
	@$(WARM) $(MAKE) --no-print-directory SIDE_BY_SIDE=1 -j$(JOBS) results/book/.complete
	@$(BIN)/python workflow/golden.py write "$(GOLDEN)"

# What took hours of training and is shipped as tables. A run that was stopped goes on where it was; TEXT is a text file
# or a folder of them. The tables go into runs: in the shipped ones every model has its rows, and none would be trained.
suite: $(READY) ## train and measure the suite of language models anew: make suite TEXT=folder
	@$(BIN)/python -m companion.training suite $(if $(TEXT),"$(TEXT)")

quality: $(READY) ## train and measure models of one shape and unequal quality: make quality TEXT=folder
	@$(BIN)/python -m companion.training quality $(if $(TEXT),"$(TEXT)")

regularised: $(READY) ## repeat the experiment with coupling as a regulariser: make regularised TEXT=folder
	@$(BIN)/python -m companion.training regularised $(if $(TEXT),"$(TEXT)")

vit-grid: $(READY) ## train and measure the grid of vision transformers anew
	@$(BIN)/python -m companion.training vit grid digits

decoders: $(READY) ## measure public decoders anew, ten hours: make decoders GGUF=folder
	@COUPLING_GGUF="$(or $(GGUF),$(COUPLING_GGUF))" $(WARM) $(MAKE) --no-print-directory SIDE_BY_SIDE=1 -j1 \
	  $(foreach model,$(DECODERS),$(DECODER_NOTEBOOKS:%=results/$(model)/%.ipynb))
	@PYTHONPATH="$$PWD" $(BIN)/python book/recorded.py $(foreach model,$(DECODERS),results/$(model)/*.ipynb)

# pip-audit has an environment of its own: what it needs is none of the project's business.
audit: $(READY) ## look every package of requirements.lock up among known vulnerabilities
	@test -x .audit/bin/pip-audit || { "$(PYTHON)" -m venv --clear .audit && .audit/bin/python -m pip install -q pip-audit==2.10.1; }
	@.audit/bin/pip-audit --strict --no-deps --disable-pip -r requirements.lock

clean: ## remove everything that was built; the environment in .venv stays
	rm -rf _build results .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -not -path './.portable/*' -prune -exec rm -rf {} +

unit: $(READY)
	@echo "== tests without a browser, $(THOROUGH)"
	@$(PYTEST) -m "not browser and $(THOROUGH)"

browser: book
	@echo "== tests of the built book, $(THOROUGH)"
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then \
	  $(PYTEST) -m "browser and $(THOROUGH)" $$(grep -rl --include='test_*.py' pytest.mark.browser tests); \
	elif [ -n "$(REQUIRE_BROWSER)" ]; then \
	  echo "error: no Chromium found; the tests of the built book need it: apt-get install chromium" >&2; exit 1; \
	else \
	  echo "the book was not read in a browser: no Chromium found; install it with: apt-get install chromium"; \
	fi

# -- set-up ---------------------------------------------------------------------------------------------------------

# torch comes by pip, which knows wheels for processors alone (PIP_EXTRA_INDEX_URL) and what else a torch for CUDA needs;
# uv installs the rest side by side. Of models in packages only the weights are wanted, and all else works without them.
# Python compiles a module when it is first imported; two processes do so meanwhile with what every notebook imports.
$(READY): requirements.lock pyproject.toml coupling_lib/models/packages.py
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "error: $(PYTHON) was not found; install Python 3.11, 3.12 or 3.13, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "error: $$("$(PYTHON)" --version 2>&1) was found; Python 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make virtual environments (no ensurepip); on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "== set-up: $$("$(PYTHON)" --version) into .venv (some minutes the first time)"
	@$(BIN)/python -c 'import sys, pip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || "$(PYTHON)" -m venv --clear .venv
	@$(PIP) -qq -c requirements.lock uv torch
	@$(UV) -r requirements.lock -e .
	@for some in "$(LARGE)" "$(LARGE_TOO) xarray sklearn.decomposition"; do $(BIN)/python -c "import $${some// /, }" 2>/dev/null & done; \
	models=$$($(BIN)/python -m coupling_lib.models.packages); $(UV) $$models \
	  || echo "the models in packages could not be fetched; later: $(UV)" $$models; wait
	@touch $@

# The exact versions of the book, out of the ranges of pyproject.toml. What is locked stays as it is where the ranges allow
# it: make lock, or make lock MORE=--upgrade (all of them), or make lock MORE="--upgrade-package numpy".
lock: $(READY) ## pin requirements.lock anew, out of the ranges of pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 $(LOCKED:%=--extra %) --no-annotate --no-header $(MORE) \
	  pyproject.toml -o requirements.lock

# Snakemake alone: its jobs run in .venv, so that nothing of what it needs can change a number.
$(SWEEP_READY): pyproject.toml | $(READY)
	@echo "== set-up of Snakemake into .venv-sweep"
	@"$(PYTHON)" -m venv --clear .venv-sweep
	@$(BIN)/uv pip install --quiet --python .venv-sweep/bin/python $$($(BIN)/python -c \
	  'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["sweep"])')
	@touch $@

# The library with its peers. One of them asks for a torchvision, which does not import beside this torch.
$(BENCH_READY): pyproject.toml requirements.lock | $(READY)
	@echo "== set-up of the library and its peers into .venv-bench"
	@"$(PYTHON)" -m venv --clear .venv-bench
	@.venv-bench/bin/python -m pip install -qq --disable-pip-version-check -c requirements.lock torch
	@$(BIN)/uv pip install --quiet --python .venv-bench/bin/python -c requirements.lock -e ".[quantised,peers]"
	@$(BIN)/uv pip uninstall --quiet --python .venv-bench/bin/python torchvision
	@touch $@

# -- the book -------------------------------------------------------------------------------------------------------

# One executed copy of a notebook per model. It is written under another name and renamed when it has run to
# the end, so that what carries the final name is complete. The kernel's own log (its transport, its end) is left out.
# $(1) is the folder under results/, $(2) what papermill is told.
define executed
results/$(1)/%.ipynb: notebooks/%.ipynb $$(LIBRARY) $$(PROMPTS) $$(filter-out data/decoders.csv,$$(TABLES)) $$(filter data/checkpoints/$(1)/%,$$(CHECKPOINTS)) results/.fresh
	@mkdir -p $$(@D)
	@echo "== notebook $$* for $(1)"
	@start=$$$$SECONDS; partial=$$(@D)/.$$*.partial.ipynb; \
	$$(RUN) -m papermill $$< $$$$partial $(2) -k warm --no-progress-bar --log-level WARNING \
	  2> >(grep --line-buffered -v '^\[IPKernelApp\]' >&2) || { echo "error: notebook $$* failed for $(1); $$$$partial shows how far it came" >&2; exit 1; }; \
	mv $$$$partial $$@; echo "   done in $$$$((SECONDS - start)) s: $$@ ($$$$(find $$(EXECUTED) -newer results/.started 2>/dev/null | wc -l) of at most $$(words $$(EXECUTED)))"
endef
$(foreach model,$(filter-out $(PACKAGED),$(MODELS)),$(eval $(call executed,$(model),-p model $(model))))
$(eval $(call executed,$(PACKAGED),-p model $(PACKAGED) $$(if $$(filter depth trajectories,$$*),$$(addprefix -p others ,$$(call beside,$$*)))))
$(eval $(call executed,suite,))
$(foreach model,$(filter-out $(FEWER),$(DECODERS)),$(eval $(call executed,$(model),-p model $(model))))
$(eval $(call executed,$(FEWER),-p model $(FEWER) $$(if $$(filter depth trajectories,$$*),,-p prompts 4)))
# It lists what has been measured here.
$(SUITE_NOTEBOOKS:%=results/suite/%.ipynb): $(filter-out results/suite/%,$(EXECUTED))

# An edited library runs the notebooks again, and they read what was measured from the store: each measure has a version
# (`coupling_lib.measurement` says when it is raised), which is part of the store's key. Other packages are not part of
# it; with them, the shipped models are measured anew. One's own are not: theirs may have taken hours.
results/.fresh: $(READY)
	@mkdir -p $(@D)
	@rm -rf $(MODELS:%=results/%/measurements)
	@touch $@

MADE_FROM := $(wildcard book/*.py book/*.csv book/templates/* data/*.toml data/atlas/*) $(filter-out %/__pycache__,$(wildcard benchmarks/*)) $(TABLES) $(LIBRARY) $(PROMPTS) $(CHECKPOINTS) $(READY)

# What is measured for pages alone, the longest first. None of these reads what another writes.
made_explorer := book/explorer.py
made_measured := book/pages.py measured
made_own_prompt := book/own_prompt.py
made_benchmarks := -m benchmarks.report
MEASURED := $(patsubst %,results/book/.%,explorer measured own_prompt benchmarks)

$(MEASURED): results/book/.%: $(MADE_FROM) results/.fresh
	@echo "== pages that measure: $*"
	@mkdir -p $(@D)
	@PYTHONPATH="$$PWD" $(RUN) $(made_$*)
	@touch $@

results/book/.complete: $(MADE_FROM) $(EXECUTED) $(MEASURED)
	@echo "== pages made from the registry, the model cards and the library"
	@PYTHONPATH="$$PWD" $(RUN) book/pages.py
	@touch $@

MADE_OF := $(BOOK) $(MEASURED) $(EXECUTED) results/book/.complete

# Beside the book: Sphinx reads its pages on one core.
results/book/.conditions: $(MADE_OF)
	@echo "== headings that compare"
	@PYTHONPATH="$(CURDIR)" $(RUN) book/conditions.py
	@touch $@

# Always from scratch (--all): Sphinx keeps pages it has read, and says nothing about the warnings in them the second
# time. The last command asserts that the pages are there.
_build/.complete: $(MADE_OF)
	@echo "== book"
	@rm -rf _build
	@$(RUN) $(BIN)/jupyter-book build . --all -n -W --keep-going \
	  || { rm -rf _build; echo "error: the book has warnings or errors, listed above; nothing was built" >&2; exit 1; }
	@$(BIN)/python book/complete.py
	@$(BIN)/python book/slim.py
	@touch $@
