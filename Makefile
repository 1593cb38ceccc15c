# make help lists the targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := $(CURDIR)/.data/bin
# The modules of go.work, as folders.
MODULES = $(shell go list -m -f '{{.Dir}}' | sed 's|^$(CURDIR)/||')
# Tools are built once for each state of the files that pin them.
key = $(shell cat $(1)/go.mod $(1)/go.sum | sha256sum | cut -c1-16)
BUILDTOOLS := $(BIN)/.buildtools-$(call key,tools/buildtools)
LINTER := $(BIN)/.golangci-$(call key,tools/buildtools/golangci)

# make test KAFKA=apache PKG=./services/signup/... ARGS='-run TestJoin -v'
KAFKA ?= embedded
PKG ?= work
ARGS ?=

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 14

.PHONY: run
run: ## Run the whole suite in one process at http://127.0.0.1:8080/v1
	@tools/standalone/prepare.sh
	@mkdir -p $(BIN) && go build -o $(BIN)/standalone ./tools/standalone
	@exec $(BIN)/standalone

.PHONY: test
test: ## Run every test with -race on real servers (KAFKA=apache, PKG=…, ARGS=…)
	@go run ./tools/testrun -kafka $(KAFKA) -- -race -timeout 45m $(ARGS) $(PKG)

.PHONY: bench
bench: ## Measure the suite against its goals and print the table
	@go run ./tools/bench $(ARGS)

.PHONY: generate
generate: $(BUILDTOOLS) ## Write the generated code anew
	@cd proto && PATH="$(BIN):$$PATH" && buf lint && buf format -w && buf generate --clean
	@PATH="$(BIN):$$PATH" go generate work

.PHONY: providers
providers: ## Fetch the newest list of free mail providers (needs npm)
	@libs/emailaddr/update.sh

.PHONY: lint
lint: $(LINTER) ## Run the linters over every module
	@$(BIN)/golangci-lint run $(patsubst %,./%/...,$(MODULES))

.PHONY: fix
fix: $(LINTER) ## Format and let the linters mend what they can
	@$(BIN)/golangci-lint run --fix $(patsubst %,./%/...,$(MODULES))

.PHONY: tidy
tidy: ## Check that each module names all it needs and builds by itself
	@for module in $(MODULES); do \
		(cd $$module && GOWORK=off GOFLAGS=-mod=mod go mod tidy -diff && GOWORK=off go build ./...) \
		|| { echo "$$module: see above"; exit 1; }; \
	done

.PHONY: verify
verify: ## Generate, tidy and lint; fails when that changes a file
	@state() { git status --porcelain; git diff HEAD; }; \
	before=$$(state | sha256sum); \
	for step in generate tidy lint; do echo "== $$step"; $(MAKE) $$step; done; \
	if [ "$$before" != "$$(state | sha256sum)" ]; then \
		git status --short; echo 'verify changed files: look at them and commit'; exit 1; \
	fi

.PHONY: tools
tools: $(BUILDTOOLS) $(LINTER) ## Build the tools that generate and lint need

$(BUILDTOOLS):
	@echo 'building the generators'
	@mkdir -p $(BIN) && rm -f $(BIN)/.buildtools-*
	@cd tools/buildtools && GOWORK=off GOBIN=$(BIN) go install tool
	@touch $@

$(LINTER):
	@echo 'building golangci-lint (some minutes, once)'
	@mkdir -p $(BIN) && rm -f $(BIN)/.golangci-*
	@cd tools/buildtools/golangci && GOWORK=off GOBIN=$(BIN) go install tool
	@touch $@
