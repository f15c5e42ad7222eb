# The commands of this repository. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help run test deps lint unit docs soak bench deny servers clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build and start the server on http://127.0.0.1:8300, with its data in ./ade-data
	@cargo run --quiet --locked -- serve

test: deps lint unit ## Install what is missing, then check everything: format, lints, all tests

deps: ## Install the servers that the tests start (Debian; elsewhere it says what to install)
	@scripts/deps

lint: ## Format, lints, and documentation without broken links
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

unit: ## All tests, documentation examples included
	cargo test --workspace --locked

docs: ## Write the generated references and fixtures anew
	ADE_UPDATE_DOCS=1 cargo test --quiet --locked -p ade-catalog --test generated
	ADE_UPDATE_DOCS=1 cargo test --quiet --locked -p ade-server --test description fresh
	ADE_UPDATE_DOCS=1 cargo test --quiet --locked -p ade-cli fresh

soak: ## The long campaigns: the same randomised tests, many more rounds (ADE_SEED repeats a run)
	ADE_SOAK=1 cargo test --release --locked --workspace -- --nocapture --test-threads 1

bench: ## Measure locks on this machine, beside the bare minimum
	cargo run --quiet --locked --release -- bench locks

deny: ## Licences, bans and sources of dependencies (needs cargo-deny)
	cargo deny check licenses bans sources

servers: ## Throw-away Redis, Sentinel, Cluster and PostgreSQL by hand; Ctrl-D stops them
	@cargo run --quiet --locked -p ade-testkit -- redis sentinel cluster postgres

clean: ## Remove what was built
	cargo clean
