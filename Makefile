# The commands of this repository. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help run test deps lint unit docs soak fuzz-api bench bench-check deny servers clean

# What measures peers is built apart from what is shipped, and so is the Python of the peers in Python.
PEERS := $(or $(CARGO_TARGET_DIR),target)/peers
PEERS_PYTHON := $(PEERS)/python/bin/python

# Most of what tests do is to wait: for servers that start, for leases that end.
TEST_THREADS := $(shell echo $$((2 * $$(nproc))))

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build and start the server with a demo organisation on http://127.0.0.1:8300, with its data in ./ade-data
	@echo "building ade, which takes some minutes the first time; then it is served"
	@cargo run --locked -- serve --demo

test: deps lint unit ## Install what is missing, then check everything: format, lints, all tests

deps: ## Install the servers that the tests start (Debian; elsewhere it says what to install)
	@scripts/deps

lint: ## Format, lints, and documentation without broken links
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

unit: ## All tests, documentation examples included
	cargo test --workspace --locked -- --test-threads $(TEST_THREADS)

docs: ## Write the generated references and fixtures anew
	ADE_UPDATE_DOCS=1 cargo test --quiet --locked -p ade-catalog --test generated
	ADE_UPDATE_DOCS=1 cargo test --quiet --locked -p ade-server --test openapi fresh
	ADE_UPDATE_DOCS=1 cargo test --quiet --locked -p ade-cli fresh

soak: ## The long campaigns: the same randomised tests, many more rounds (ADE_SEED repeats a run)
	ADE_SOAK=1 cargo test --release --locked --workspace -- --nocapture --test-threads 1

fuzz-api: deps ## The served API against its own description, for longer than `make test` does (ADE_SEED repeats a run)
	ADE_SOAK=1 cargo test --locked -p ade-cli --test api schemathesis -- --nocapture --test-threads 1

bench: $(PEERS)/python/ready ## Measure locks, approvals and lifecycles on this machine, beside the bare minimum and beside peers
	@scripts/deps bench
	cargo run --quiet --locked --release -- bench locks
	cargo run --quiet --locked -p ade-testkit -- redis -- \
		sh -c 'exec cargo run --quiet --locked --release -- bench locks --redis "$$REDIS"'
	cargo run --quiet --locked --release -- bench approvals
	cargo run --quiet --locked -p ade-testkit -- redis postgres -- \
		sh -c 'exec cargo run --quiet --locked --release -- bench approvals --redis "$$REDIS" --postgres "$$POSTGRES"'
	cargo run --quiet --locked --release -- bench lifecycle
	cargo run --quiet --locked -p ade-testkit -- redis postgres -- \
		sh -c 'exec cargo run --quiet --locked --release -- bench lifecycle --redis "$$REDIS" --postgres "$$POSTGRES"'
	cargo run --quiet --locked --release --manifest-path peers/Cargo.toml --target-dir $(PEERS) -- \
		--python $(PEERS_PYTHON) --json $(PEERS)/peers.json

bench-check: ## Format, lints and tests of what measures peers
	@scripts/deps bench
	cargo fmt --check --manifest-path peers/Cargo.toml
	cargo clippy --all-targets --locked --manifest-path peers/Cargo.toml --target-dir $(PEERS) -- -D warnings
	cargo test --quiet --locked --manifest-path peers/Cargo.toml --target-dir $(PEERS)

$(PEERS)/python/ready: peers/requirements.txt
	@scripts/deps bench
	python3 -m venv --clear $(PEERS)/python
	$(PEERS_PYTHON) -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

deny: ## Licences, bans and sources of dependencies (needs cargo-deny)
	cargo deny check licenses bans sources

servers: ## Throw-away Redis, Sentinel, Cluster and PostgreSQL by hand; Ctrl-D stops them
	@cargo run --quiet --locked -p ade-testkit -- redis sentinel cluster postgres

clean: ## Remove what was built
	cargo clean
