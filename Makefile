# `make demo` shows it, `make test` proves it; both set up what they need in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SHOWS  := $(VENV)/.shows
OUT    := .
PROTOC := .tools/grpcio-tools-1.62.3

# An environment that was moved, or whose Python is gone, is made again.
$(shell grep -qsxF '$(CURDIR)' $(READY) $(SHOWS) && $(BIN)/python -c '' 2>/dev/null || rm -f $(READY) $(SHOWS))

.PHONY: demo fleet venv check check-laws check-sim test names matrix bench site node proto settings book format clean

# An environment for tests will do; else there is one for the demo alone, which is made
# sooner.
demo: $(if $(wildcard $(READY)),$(READY),$(SHOWS))
	$(BIN)/lbclient demo $(ARGS)

# A fleet that is larger than a subset: 40 backends x 40 clients.
fleet: $(READY)
	$(BIN)/python examples/fleet/large.py $(ARGS)

# The environment alone.
venv: $(READY)

# What needs no network: two processes beside each other, in a minute.
QUICK := -m 'not slow' --hypothesis-profile=quick
check: $(READY)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-laws check-sim
check-laws: $(READY)
	@$(BIN)/python -m pytest $(QUICK) -o cache_dir=.pytest_cache/laws tests/unit tests/laws $(ARGS)
check-sim: $(READY)
	@$(BIN)/python -m pytest $(QUICK) -o cache_dir=.pytest_cache/sim \
	  tests/house/test_style.py tests/loop tests/sim $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

# Calls, and what else `ARGS` names, where grpcio lacks a private name: each, or `NAMES`.
names: $(READY)
	@for name in $(or $(NAMES),$$($(BIN)/python -m tests.without_name)); do \
	  WITHOUT_NAME=$$name $(BIN)/python -m pytest -q --tb=short -p tests.without_name \
	    $(or $(ARGS),tests/conformance) || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "Failed without:$$failed"; exit 1; }

matrix: $(READY)
	$(BIN)/python -m tests.matrix $(ARGS)

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

# The documentation as a site, in build/site.
site: $(READY)
	$(BIN)/python -m mkdocs $(or $(ARGS),build)

# Writes the tables of settings into their page, from the fields of the configs.
settings: $(READY)
	$(BIN)/python -m lbclient.config docs/configuration.md

# Writes the tables of the book's figures into docs/book.md, and draws its pictures.
book: $(READY)
	$(BIN)/python -m lbclient.cli.lab.book_page docs/book.md

format: $(READY)
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

clean:
	rm -rf $(VENV) .tools dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# What the last run left unfinished is thrown away; else only what changed is installed.
$(READY): EXTRA := dev
$(SHOWS): EXTRA := demo
$(READY) $(SHOWS): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "lbclient needs Python 3.11 or newer; try make PYTHON=python3.12"; exit 1; }
	@test -e $(READY) -o -e $(SHOWS) || { echo "Setting up $(VENV)" && $(MAKE_VENV); } \
	  || { rm -rf $(VENV); echo "No venv: sudo apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --editable '.[$(EXTRA)]'
	@echo '$(CURDIR)' > $@

# Debian keeps what venv installs pip from, ensurepip, in python3-venv. Root gets that
# package; for others a pip that is there already will do.
HAS_PIP   = $(PYTHON) -c 'import ensurepip' 2>/dev/null
APT       = test "$$(id -u)" = 0 && { apt-get update && apt-get install --yes python3-venv; } >/dev/null 2>&1
MAKE_VENV = if { $(HAS_PIP) || { $(APT) && $(HAS_PIP); }; } \
	  then $(PYTHON) -m venv --clear $(VENV); \
	  else $(PYTHON) -m pip --version >/dev/null 2>&1 && $(PYTHON) -m venv --clear --without-pip $(VENV) \
	  && $(PYTHON) -m pip --quiet --python $(BIN)/python install pip; fi

# The oldest compiler whose output every supported protobuf runtime accepts. It wants
# the pkg_resources that setuptools 81 dropped.
$(PROTOC)/.ready: | $(READY)
	@rm -rf $(PROTOC)
	@$(BIN)/python -m pip install --quiet --no-deps --only-binary :all: --target $(PROTOC) \
	  grpcio-tools==1.62.3 'setuptools<81'
	@touch $@

# Clients in Node, for the faults that stock clients are shown.
NODE := .tools/node
node: $(NODE)/.ready
$(NODE)/.ready: benchmarks/faults/node/package.json benchmarks/faults/node/client.js
	@mkdir -p $(NODE) && cp $^ $(NODE)
	@npm install --prefix $(NODE) --silent --no-audit --no-fund --no-package-lock
	@touch $@

COMPILE = PYTHONPATH=$(PROTOC) $(BIN)/python -m grpc_tools.protoc
proto: $(PROTOC)/.ready
	@mkdir -p $(OUT)/examples/fleet $(OUT)/examples/fastapi
	$(COMPILE) -Iproto --python_out=$(OUT) --pyi_out=$(OUT) proto/lbclient/v1/*.proto
	$(COMPILE) -Iexamples --python_out=$(OUT)/examples --pyi_out=$(OUT)/examples \
	  --grpc_python_out=$(OUT)/examples examples/search.proto
	$(COMPILE) -Iexamples/fleet --python_out=$(OUT)/examples/fleet --pyi_out=$(OUT)/examples/fleet \
	  --grpc_python_out=$(OUT)/examples/fleet examples/fleet/fleet.proto
	$(COMPILE) -Iexamples/fastapi --python_out=$(OUT)/examples/fastapi --pyi_out=$(OUT)/examples/fastapi \
	  --grpc_python_out=$(OUT)/examples/fastapi examples/fastapi/shop/catalog.proto
