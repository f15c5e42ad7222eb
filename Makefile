# Commands of this repository. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help run test deps format lint unit doc docs soak fuzz-api bench bench-check deny servers clean

# The comparison with peers is built apart from the shipped binary, with a Python environment of its own.
PEERS := $(or $(CARGO_TARGET_DIR),target)/peers
PEERS_PYTHON := $(PEERS)/python/bin/python

# Clippy compiles the crates of the workspace here, so that lints and tests share one build: `cargo clippy` would check
# everything a second time. Both variables are what `cargo clippy -- -D warnings` sets.
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings

# More threads than cores: tests mostly wait for servers to start and for leases to expire.
TEST_THREADS := $(shell echo $$((3 * $$(nproc))))

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build and start the server with demo data on http://127.0.0.1:8300 (data folder: ./ade-data)
	@echo "building ade (takes some minutes the first time), then starting the server"
	@cargo run --locked -- serve --demo

test: deps format unit doc ## Install missing servers, then run all checks: format, lints, tests, documentation

deps: ## Install the servers and the browser that tests need (Debian; on other systems: print what to install)
	@scripts/deps

format: ## Check the format
	cargo fmt --all --check

lint: format ## Check format and lints, without tests
	cargo clippy --workspace --all-targets --locked -- -D warnings

unit: ## Check lints and run all tests, including documentation examples
	$(LINTED) cargo test --workspace --locked -- --test-threads $(TEST_THREADS)

doc: ## Check the links of the documentation
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

docs: ## Regenerate the references and fixtures
	ADE_UPDATE_DOCS=1 cargo test --quiet --locked -p ade-catalog --test integration generated
	ADE_UPDATE_DOCS=1 cargo test --quiet --locked -p ade-server --test openapi fresh
	ADE_UPDATE_DOCS=1 cargo test --quiet --locked -p ade-cli fresh
	ADE_UPDATE_DOCS=1 cargo test --quiet --locked -p ade-cli --test integration readme_shows

soak: ## Run the randomised tests with many more rounds (ADE_SEED repeats a run)
	ADE_SOAK=1 cargo test --release --locked --workspace -- --nocapture --test-threads 1

fuzz-api: deps ## Fuzz the HTTP API against its OpenAPI description, longer than `make test` (ADE_SEED repeats a run)
	ADE_SOAK=1 cargo test --locked -p ade-cli --test integration schemathesis -- --nocapture --test-threads 1

bench: $(PEERS)/python/ready ## Measure locks, approvals, lifecycles, events and audits on this machine, compared with baselines and peers
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
	cargo run --quiet --locked --release -- bench events
	cargo run --quiet --locked -p ade-testkit -- redis postgres -- \
		sh -c 'exec cargo run --quiet --locked --release -- bench events --redis "$$REDIS" --postgres "$$POSTGRES"'
	cargo run --quiet --locked -p ade-testkit -- redis -- \
		sh -c 'exec cargo run --quiet --locked --release -- bench audit --redis "$$REDIS"'
	cargo run --quiet --locked --release --manifest-path peers/Cargo.toml --target-dir $(PEERS) -- \
		--python $(PEERS_PYTHON) --json $(PEERS)/peers.json
	cargo run --quiet --locked --release -- bench chart $(PEERS)/peers.json > $(PEERS)/peers.svg

bench-check: ## Check format, lints and tests of peers/
	@scripts/deps bench
	cargo fmt --check --manifest-path peers/Cargo.toml
	cargo clippy --all-targets --locked --manifest-path peers/Cargo.toml --target-dir $(PEERS) -- -D warnings
	cargo test --quiet --locked --manifest-path peers/Cargo.toml --target-dir $(PEERS)

$(PEERS)/python/ready: peers/requirements.txt
	@scripts/deps bench
	python3 -m venv --clear $(PEERS)/python
	$(PEERS_PYTHON) -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

deny: ## Check licences, bans and sources of dependencies (needs cargo-deny)
	cargo deny check licenses bans sources

servers: ## Start temporary Redis, Sentinel, Cluster and PostgreSQL servers; Ctrl-D stops them
	@cargo run --quiet --locked -p ade-testkit -- redis sentinel cluster postgres

clean: ## Remove build output
	cargo clean
