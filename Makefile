# `make demo` shows it, `make test` proves it; both set up what they need in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PROTOC_TOOLS := .tools/grpcio-tools-1.62.3

.PHONY: demo test bench proto format clean

demo: $(VENV)/.ready
	$(BIN)/lbclient demo $(ARGS)

test: $(VENV)/.ready
	$(BIN)/python -m pytest $(ARGS)

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks.overhead $(ARGS)

format: $(VENV)/.ready
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf $(VENV) .tools dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Debian keeps venv's pip in a package of its own.
$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "lbclient needs Python 3.11 or newer; try make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq python3-venv; } \
	  || { echo "Python's venv is missing: sudo apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# The oldest compiler whose output every supported protobuf runtime accepts.
$(PROTOC_TOOLS): | $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --no-deps --target $@ grpcio-tools==1.62.3 'setuptools<81'

proto: $(PROTOC_TOOLS)
	PYTHONPATH=$< $(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. proto/lbclient/v1/*.proto
	cd examples && PYTHONPATH=../$< ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. search.proto
	cd examples/fleet && PYTHONPATH=../../$< ../../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. fleet.proto
