# make help lists the targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := $(CURDIR)/.data/bin
# Installs the programs that its arguments need.
PREPARE := tools/cmd/prepare/prepare.sh
# The modules of go.work, as folders.
MODULES = $(shell go list -m -f '{{.Dir}}' | sed 's|^$(CURDIR)/||')
# Modules outside go.work, so that no other module depends on Prometheus.
APART := tools/dashboards tools/test/observability
# Tools are built once for each state of the files that pin them.
key = $(shell cat $(1)/go.mod $(1)/go.sum | sha256sum | cut -c1-16)
BUILDTOOLS := $(BIN)/.buildtools-$(call key,tools/buildtools)
LINTER := $(BIN)/.golangci-$(call key,tools/buildtools/golangci)
UNITTEST := $(BIN)/.charts-$(call key,tools/buildtools/charts)
KUBESCORE := $(BIN)/.kubescore-$(call key,tools/buildtools/kubescore)
CONTROLLERS := $(BIN)/.controllers-$(call key,tools/buildtools/controllers)
LABTOOLS := $(BIN)/.kubernetes-$(call key,tools/buildtools/kubernetes)
SQLC := $(BIN)/.sqlc-$(call key,tools/buildtools/sqlc)
OASDIFF := $(BIN)/.openapi-$(call key,tools/buildtools/openapi)
ANCHOR := $(BIN)/.anchor-$(call key,tools/buildtools/anchor)
KO := $(BIN)/.images-$(call key,tools/buildtools/images)
SQUAWK := $(CURDIR)/.data/squawk-$(shell sha256sum tools/test/migrations/requirements.txt | cut -c1-16)/bin/squawk

# What npm installs, checked against the lock file.
PAGE := tools/dashboards/page/node_modules/.package-lock.json
TYPES := tools/test/observability/schema/node_modules/.package-lock.json
CLIENT := tools/sdk/ts/node_modules/.package-lock.json

# make test KAFKA=apache PKG=./services/signup/... ARGS='-run TestJoin -v'
KAFKA ?= embedded
# make test-k8s LAB_KAFKA=embedded ARGS='-run TestRollouts'
# TAGS=k8s,anchor ARGS='-run TestAnchor' releases the same builds by our operator and by Flagger (needs Debian's package prometheus).
LAB_KAFKA ?= apache
TAGS ?= k8s
PKG ?= work
ARGS ?=

# make test-former FORMER=v1.2.0 ARGS='-run TestSuite/everyday'
FORMER ?=
# make api-diff BASE=v1.2.0; without BASE, proto/api-diff chooses the commit.
BASE ?=

# make deploy REPO=registry.example.com/waitlist VALUES='values.yaml more.yaml'
REPO ?=
VALUES ?=
RELEASE ?= waitlist
NAMESPACE ?= $(CHART)
VERSION ?= $(shell git describe --tags --always --dirty)
# More flags of ko and of helm, as KOFLAGS=--platform=linux/amd64.
KOFLAGS ?=
HELMFLAGS ?=
SERVICES := account signup admin-analytics billing messaging notifier pages
# The digests of the images built last, as values of charts/waitlist.
IMAGES := $(CURDIR)/.data/images.yaml

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/\1\t\2/' | expand -t 14

.PHONY: run
run: ## Run the whole suite in one process at http://127.0.0.1:8080/v1
	@$(PREPARE) run
	@mkdir -p $(BIN) && go build -o $(BIN)/standalone ./tools/cmd/standalone
	@exec $(BIN)/standalone

# The page's charts come from npm. METRICS=http://127.0.0.1:8081/metrics watches a suite that already runs, on loopback.
METRICS ?=
.PHONY: dashboards
dashboards: $(PAGE) ## Run the suite with its dashboards, alerts and traces at http://127.0.0.1:9090 (METRICS=…, ARGS=…)
	@$(PREPARE) run
	@mkdir -p $(BIN) && go build -o $(BIN)/standalone ./tools/cmd/standalone
	@cd tools/dashboards && GOWORK=off go build -o $(BIN)/dashboards .
	@exec $(BIN)/dashboards $(if $(METRICS),-metrics $(METRICS),-run $(BIN)/standalone) $(ARGS)

.PHONY: quick
quick: PKG = $(patsubst %,./%/...,$(filter-out tools/%,$(filter-out tools,$(MODULES))))
quick: ## Run the tests of libs and services without -race, between two edits (PKG=…, ARGS=…)
	@go run ./tools/test/run -cached -packages '$(PKG)' -- -short -p 8 $(ARGS)

# A part of the tests may need less.
.PHONY: prepared
prepared:
	@$(PREPARE) test $(filter apache,$(KAFKA)) $(if $(filter-out work,$(PKG)),|| true)

.PHONY: test
test: prepared $(BIN)/helm ## Run every test with -race on real servers (KAFKA=apache, PKG=…, ARGS=…)
	@go run ./tools/test/run -kafka $(KAFKA) -packages '$(PKG)' -- -race -p 2 -timeout 75m $(ARGS)

.PHONY: test-observability
test-observability: prepared $(PAGE) $(TYPES) ## Check metrics, rules and dashboards with Prometheus, Grafana's types and Chromium
	@cd tools/dashboards && GOWORK=off go test -count=1 ./...
	@cd tools/test/observability && GOWORK=off go test -count=1 -parallel 8 -timeout 10m -skip '^TestFaults$$' $(ARGS) .

.PHONY: test-faults
test-faults: $(LABTOOLS) ## Inject faults into running suites: each alert must fire and clear (needs an idle machine)
	@go build -o $(BIN)/operator ./k8s/canary/cmd/operator
	@cd tools/test/observability && LAB_BIN=$(BIN) GOWORK=off go test -count=1 -v -timeout 20m -run '^TestFaults$$' $(ARGS) .

# Parts: model; linearizable, kills and outages of all programs; outbox; process and blasts (chaos of one process, and of blasts);
# schemathesis (needs python3-venv); fuzz; soak.
# PART=kills CHAOS_SEED=7 CHAOS_ROUNDS=40 repeats what failed with that seed, PART=schemathesis ARGS='--seed 7' likewise.
# PART=fuzz FUZZTIME=2000x takes so many inputs for each target, PART=soak SOAK=10m SOAK_RATE=1 is shorter.
PART ?= model linearizable kills outages outbox process blasts schemathesis
LONG = go run ./tools/test/run -packages
.PHONY: test-long
test-long: ## Run the long proofs: all, or PART=model, kills, fuzz, soak, …
	@for part in $(PART); do echo "== $$part"; case $$part in \
	model) MODEL_STEPS=125000 $(LONG) ./services/signup -- -count=1 -parallel 4 -run '^TestModel$$' -v ;; \
	linearizable | kills | outages) CHAOS=full $(LONG) ./tools/test/deploy -kafka apache -- -count=1 -v -timeout 3h \
		-run "^TestPrograms\$$/^$$part\$$" ;; \
	outbox) CHAOS=full $(LONG) ./libs/outbox -- -race -count=1 -v ;; \
	process) CHAOS=full $(LONG) ./tools/test/chaos -- -count=1 -v -timeout 1h ;; \
	blasts) CHAOS=full $(LONG) ./services/messaging/cmd/messaging -- -count=1 -v -timeout 1h -run '^TestKillsInABlast$$' ;; \
	schemathesis) tools/test/schemathesis/run $(ARGS) ;; \
	fuzz) tools/test/fuzz "$${FUZZTIME:-10m}" ;; \
	soak) SOAK=$${SOAK:-1h} $(LONG) ./tools/test/deploy -- -count=1 -v -timeout 3h -run '^TestPrograms$$/^soak$$' ;; \
	*) echo "there is no part $$part" >&2; exit 1 ;; \
	esac || exit 1; done

.PHONY: test-clients
test-clients: ## Generate clients from the OpenAPI document for five languages and drive them (needs Java, Maven, npm and python3-venv)
	@tools/cmd/prepare/prepare.sh clients
	@go test -tags generators -count=1 -run '^TestGenerated$$' $(ARGS) ./tools/test/clients

.PHONY: test-former
test-former: ## Run the e2e suite of FORMER (a commit; else the last tag) on today's schema (ARGS=…)
	@tools/test/former/run "$(FORMER)" $(ARGS)

.PHONY: bench
bench: ## Measure the suite against its goals and print the table
	@go run ./tools/bench $(ARGS)

.PHONY: generate
generate: $(BUILDTOOLS) $(SQLC) $(CONTROLLERS) $(CLIENT) ## Regenerate the generated code (needs npm)
	@cd proto && PATH="$(BIN):$$PATH" && buf lint && buf format -w && buf generate --clean
	@go run ./tools/cmd/schema
	@cd services && $(BIN)/sqlc generate
	@PATH="$(BIN):$$PATH" go generate work
	@npm run --silent --prefix tools/sdk/ts generate && npm run --silent --prefix tools/sdk/ts build

.PHONY: lint
lint: $(LINTER) $(SQUAWK) lines ## Run the linters over every module, the prose and the migrations (ARGS=--fix mends; needs python3-venv)
	@go test -count=1 ./tools/test/docs/
	@SQUAWK=$(SQUAWK) tools/test/migrations/run
	@$(BIN)/golangci-lint run $(ARGS) $(patsubst %,./%/...,$(MODULES))
	@for module in $(APART); do (cd $$module && GOWORK=off $(BIN)/golangci-lint run) || exit 1; done

# Generated files and test data may be wider.
WIDE := proto/gen/ proto/openapi/accepted.txt tools/sdk/ts/src/contract.ts *.sum */postgres/db/* */postgres/schema.sql \
	docs/settings.md docs/runbooks.md */testdata/* \
	charts/waitlist/files/rules.yaml charts/waitlist/files/dashboards/* k8s/canary/config/crd/* charts/canary/files/crd.yaml
.PHONY: lines
lines:
	@! LC_ALL=C.UTF-8 git grep -nIE '^.{141,}' -- . $(patsubst %,':!%',$(WIDE))

.PHONY: verify
verify: ## Generate, tidy and lint; fails when that changes a file (needs npm and python3-venv)
	@state() { git status --porcelain; git diff HEAD; }; \
	before=$$(state | sha256sum); \
	$(MAKE) generate; \
	for module in $(MODULES); do \
		(cd $$module && GOWORK=off GOFLAGS=-mod=mod go mod tidy -diff && GOWORK=off go build ./...) \
		|| { echo "$$module: see above"; exit 1; }; \
	done; \
	$(MAKE) lint; \
	if [ "$$before" != "$$(state | sha256sum)" ]; then \
		git status --short; echo 'verify changed files: look at them and commit'; exit 1; \
	fi

.PHONY: api-diff
api-diff: $(BUILDTOOLS) $(OASDIFF) ## Fail where the interface breaks clients of BASE's (a commit; else the last tag)
	@BIN=$(BIN) proto/api-diff $(BASE)

.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities that the code reaches (asks vuln.go.dev)
	@for module in $(MODULES); do \
		echo "== $$module"; go -C $$module run golang.org/x/vuln/cmd/govulncheck@v1.8.0 ./... || exit 1; \
	done

.PHONY: charts
charts: $(UNITTEST) $(KUBESCORE) $(LABTOOLS) ## Lint, test and score the charts; judge them and the canary operator by an API server
	@BIN=$(BIN) charts/check
	@go test -count=1 ./tools/test/charts/ # the cache does not see charts/
	@if [ "$$(id -u)" = 0 ]; then \
		LAB_BIN=$(BIN) go test -tags k8s -count=1 -v -run TestDryRun ./tools/test/lab; \
	else \
		echo 'level: rendered only. As root an API server judges every object, too.'; \
	fi
	@CANARY_SCHEDULES=100 LAB_BIN=$(BIN) go test -tags k8s -count=1 -v -run '^(TestSchedules|TestRealServer)$$' ./k8s/canary/controller

.PHONY: images
images: $(KO) ## Build the services' images and push them to REPO
	@[ -n "$(REPO)" ] || { echo 'say where the images go: make images REPO=registry.example.com/waitlist' >&2; exit 1; }
	@mkdir -p $(dir $(IMAGES))
	@VERSION=$(VERSION) KO_DOCKER_REPO=$(REPO) $(BIN)/ko build --base-import-paths --tags $(VERSION) --sbom spdx \
		$(KOFLAGS) $(foreach service,$(SERVICES),./services/$(service)/cmd/$(service)) >$(IMAGES).refs
	@{ echo '# Written by make images, $(VERSION).'; \
		printf 'global:\n  image: {repository: "%s"}\n' $(REPO); \
		sort -u $(IMAGES).refs | sed -E 's|.*/([a-z-]+)(:[^@]*)?@(sha256:[0-9a-f]+)$$|\1:\n  image: {digest: "\3"}|'; \
	} >$(IMAGES)
	@cat $(IMAGES)

# The chart waitlist is released through its canaries, the canary operator (canary) and the prober by helm alone.
CHART ?= waitlist
.PHONY: deploy
deploy: $(if $(filter waitlist,$(CHART)),images) $(KO) $(LABTOOLS)
deploy: ## Build the images, install or upgrade CHART (waitlist, canary or prober) (REPO, VALUES, RELEASE, NAMESPACE)
	@[ -n "$(REPO)" ] || { echo 'say where the images go: make deploy REPO=registry.example.com/waitlist' >&2; exit 1; }
	@case $(CHART) in \
	waitlist) \
		BIN=$(BIN) IMAGES=$(IMAGES) RELEASE=$(RELEASE) NAMESPACE=$(NAMESPACE) VALUES='$(VALUES)' HELMFLAGS='$(HELMFLAGS)' .ci/deploy; \
		exit ;; \
	canary) program=./k8s/canary/cmd/operator chart=charts/canary ;; \
	prober) program=./tools/prober chart='charts/service --values k8s/prober.yaml' ;; \
	*) echo 'there is no chart $(CHART)' >&2; exit 1 ;; \
	esac; \
	image=$$(VERSION=$(VERSION) KO_DOCKER_REPO=$(REPO) $(BIN)/ko build --base-import-paths --sbom spdx $(KOFLAGS) $$program); \
	$(BIN)/helm upgrade --install $(CHART) $$chart --namespace $(NAMESPACE) --create-namespace \
		--set image.repository=$${image%@*} --set image.digest=$${image#*@} $(foreach file,$(VALUES),--values $(file)) \
		--wait --timeout 5m $(HELMFLAGS)

# What needs the network comes first: the laboratory has none.
.PHONY: test-k8s
test-k8s: $(LABTOOLS) $(KO) $(if $(findstring anchor,$(TAGS)),$(ANCHOR))
test-k8s: ## Deploy the charts to a Kubernetes of this machine's own and test them (root)
	@$(PREPARE) lab $(filter apache,$(LAB_KAFKA))
	@[ $(LAB_KAFKA) != apache ] || go run ./tools/cmd/devkafka -fetch
	@$(BIN)/helm dependency build charts/waitlist >/dev/null
	@go build -o $(BIN)/lab ./tools/test/lab/cmd/lab
	@go build -o $(BIN)/operator ./k8s/canary/cmd/operator
	@go test -c -o $(BIN)/e2e.test ./tools/test/e2e
	@LAB_BIN=$(BIN) TEST_KAFKA=$(LAB_KAFKA) go test -tags $(TAGS) -count=1 -v -parallel 4 -timeout 2h $(ARGS) ./tools/test/lab

$(PAGE) $(TYPES) $(CLIENT): %/node_modules/.package-lock.json: %/package-lock.json
	@$(PREPARE) npm
	@npm ci --silent --prefix $* && touch $@

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

$(SQUAWK):
	@$(PREPARE) python
	@rm -rf .data/squawk-* && python3 -m venv $(@D)/..
	@$(@D)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r tools/test/migrations/requirements.txt
	@touch $@

# .<folder>-<key>: the tools of tools/buildtools/<folder>.
$(UNITTEST) $(KUBESCORE) $(OASDIFF) $(KO) $(SQLC) $(CONTROLLERS) $(ANCHOR): $(BIN)/.%:
	@echo 'building the tools of tools/buildtools/$(firstword $(subst -, ,$*))'
	@mkdir -p $(BIN) && rm -f $(BIN)/.$(firstword $(subst -, ,$*))-*
	@cd tools/buildtools/$(firstword $(subst -, ,$*)) && GOWORK=off CGO_ENABLED=0 GOBIN=$(BIN) go install -trimpath -ldflags '-s -w' tool
	@touch $@

# Only helm from that folder: the tests render the charts with it.
$(BIN)/helm:
	@echo 'building helm'
	@cd tools/buildtools/kubernetes && GOWORK=off CGO_ENABLED=0 GOBIN=$(BIN) go install -trimpath -ldflags '-s -w' helm.sh/helm/v4/cmd/helm

# The API server reports this release; charts may ask for it.
KUBERNETES_VERSION = $(shell cd tools/buildtools/kubernetes && GOWORK=off go list -m -f '{{.Version}}' k8s.io/kubernetes)
LAB_LDFLAGS = -s -w $(foreach set,gitVersion=$(KUBERNETES_VERSION) gitMajor=1 gitMinor=36,-X k8s.io/component-base/version.$(set))
$(LABTOOLS):
	@echo 'building Kubernetes, etcd and helm (five minutes, once)'
	@mkdir -p $(BIN) && rm -f $(BIN)/.kubernetes-*
	@cd tools/buildtools/kubernetes && GOWORK=off CGO_ENABLED=0 GOBIN=$(BIN) go install -trimpath -ldflags '$(LAB_LDFLAGS)' tool
	@mv $(BIN)/server $(BIN)/etcd # go.etcd.io/etcd/server
	@touch $@
