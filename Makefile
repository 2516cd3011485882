# Everything is built from source through the Go module proxy; the first run
# compiles an API server, later runs find it in the user's cache.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The API servers that tests and demo use; respects KUBEBUILDER_ASSETS.
CONTROLPLANE := go run ./test/controlplane/cmd/controlplane
# The linter's cache is the checkout's own: shared by clones, it names files of one
# that may be gone, and exclusions that look at a file's lines then fail to apply.
LINT := GOLANGCI_LINT_CACHE=$(CURDIR)/.cache/golangci-lint go tool -modfile=test/tools/go.mod golangci-lint

.PHONY: help
help: ## Show this help.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | column -t -s "$$(printf '\t')"

.PHONY: demo
demo: build ## Run the main job end to end and stay up; ARGS=--once: run it once and exit.
	@exec .demo/bin/demo $(ARGS)

.PHONY: test
test: assets ## Run all tests, on real API servers, with the race detector.
	@echo "compiling and running all tests: some thirty minutes the first time, seventeen after that"
	go test -race -shuffle=on -timeout 30m ./...

.PHONY: bench-health
bench-health: ## Benchmark the health engine, for some five minutes; docs/benchmarks.md reads it.
	go test ./hub/health -run '^$$' -bench '^BenchmarkHealth$$' -benchtime 1x -timeout 30m -v

.PHONY: bench-lease
bench-lease: ## Benchmark the leases and the crawlers' API, for some five minutes; docs/benchmarks.md reads it.
	go test ./hub/rest -run '^$$' -bench '^BenchmarkLease$$' -benchtime 1x -timeout 30m -v

.PHONY: clients
clients: ## Install curl, Python's requests and Node's fetch, which tests use where they are.
	test/crawler/install

.PHONY: proxies
proxies: ## Install tinyproxy, squid and microsocks, which tests start where they are.
	test/forwardproxies/install

.PHONY: verify
verify: verify-generated verify-format vet verify-imports lint ## Check generated files, format, vet, the import rule and lint.

.PHONY: generate
generate: ## Generate deepcopy functions, CRDs and roles from the code.
	go tool controller-gen object paths=./api/...
	go tool controller-gen crd paths=./api/... output:crd:dir=config/crd
	go tool controller-gen rbac:roleName=proxy-operator-hub paths=./cmd/hub/... output:rbac:dir=config/rbac/hub
	go tool controller-gen rbac:roleName=proxy-operator-spoke paths=./hub/proxy/... paths=./spoke/... output:rbac:dir=config/rbac/spoke
	go tool controller-gen rbac:roleName=proxy-operator-spoke-identity,fileName=identity_role.yaml paths=./hub/registry/... output:rbac:dir=config/rbac/spoke

.PHONY: build
build: ## Build the programs into .demo/bin.
	@mkdir -p .demo/bin
	@echo "compiling the programs: some minutes the first time, seconds after that"
	go build -o .demo/bin/ ./cmd/hub ./cmd/forwardproxy ./test/node ./test/origin ./test/demo

.PHONY: assets
assets: ## Build the API server that tests use, once per machine and version.
	@$(CONTROLPLANE) assets >/dev/null

.PHONY: kubectl
kubectl: ## Build a kubectl of the same version and print its path.
	@$(CONTROLPLANE) kubectl

.PHONY: verify-generated
verify-generated: generate
	@[ -z "$$(git status --porcelain -- api config)" ] || { git --no-pager diff -- api config; echo "generated files are out of date: run 'make generate' and commit the result" >&2; exit 1; }

.PHONY: verify-format
verify-format:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "not gofmt'd: $$unformatted" >&2; exit 1; }
	@go mod tidy -diff

.PHONY: verify-imports
verify-imports:
	go test ./test/imports

.PHONY: vet
vet:
	go vet ./...

.PHONY: lint
lint: ## Lint with golangci-lint, built from its module.
	@echo "the linter is compiled first, which takes some minutes the first time"
	$(LINT) run ./...
