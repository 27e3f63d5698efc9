# `make` lists the targets. Everything runs in .venv, which is created when it is first needed.

# An empty environment has no PATH, and Python needs one to find itself.
export PATH := $(or $(PATH),/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)

# The tests start hundreds of processes, which should not compile every module again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
ARGS ?=
VENV := .venv$(patsubst %,-%,$(filter-out python3,$(notdir $(PYTHON))))
BIN := $(VENV)/bin
DISTRIBUTIONS := protocol keyservice gateway server sdk
METADATA := $(DISTRIBUTIONS:%=%/pyproject.toml)
LOCKED := $(patsubst %,requirements/%.txt,run gateway keyservice kubernetes all)
RACES := $(patsubst %,gateway/tests/test_%.py,sessions second_factors email_codes step_up invitations registration password_resets)
HELM := helm.sh/helm/v3/cmd/helm@v3.22.0
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check
# Names each package as pip comes to it. A pipe hides pip's status, so the file says that pip succeeded.
INSTALL_TELLING = { $(BIN)/pip install --disable-pip-version-check --progress-bar off --require-hashes -r $(1) \
	&& touch $(VENV)/installed; } | sed -un 's/^Collecting \([^ ;=]*\).*/  \1/p; s/^Installing collected.*/  writing the files/p' \
	&& rm $(VENV)/installed

.PHONY: help run test site lint format types bench compare latency road messages texts docs bench-log bench-inventory bench-keyrings bench-scaling large moves differential fuzz mutants openid interop typescript witnesses watchers campaigns simulate crashes cluster migration races failpoints soak screenshots wheels release release-check images imagecheck deploycheck debian13 debian12 lock passwords clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 15

run: $(VENV)/run ## start pqkeep on this machine: make run ARGS="--port 8080 --data DIR"
	@exec $(BIN)/pqkeepd dev $(ARGS)

test: $(VENV)/dev ## run the tests
	$(BIN)/pytest -n 4 $(ARGS)

site: .venv-site/made ## make the documentation's web site in site/: a dead link ends it
	@rm -rf site
	@docs/site/build site
	@echo "to read it: python3 -m http.server --bind 127.0.0.1 --directory site 8000"

lint: $(VENV)/dev ## check style and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/dev ## check types
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python

format: $(VENV)/dev ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev ## measure requests/s, latency and CPU an operation
	$(BIN)/python benchmarks/run.py $(ARGS)

compare: $(VENV)/dev ## load OpenBao and pqkeep in turns: make compare ARGS="--openbao PATH"
	$(BIN)/python -m benchmarks.compare $(ARGS)

latency: $(VENV)/dev ## measure latency at half of the load that saturates
	$(BIN)/python -m benchmarks.latency $(ARGS)

bench-log: $(VENV)/dev ## measure searches, proofs and exports of a long audit log
	$(BIN)/python -m benchmarks.log $(ARGS)

bench-inventory: $(VENV)/dev ## measure the inventory over a million records: pages, counts, and counting
	$(BIN)/python -m benchmarks.inventory $(ARGS)

bench-keyrings: $(VENV)/dev ## measure 100,000 keyrings of one tenant: created, listed, used, backed up
	$(BIN)/python -m benchmarks.keyrings $(ARGS)

large: $(VENV)/dev ## make a large installation, with a million records, in a new directory: ARGS="DIRECTORY"
	$(BIN)/python -m benchmarks.large $(ARGS)

bench-scaling: $(VENV)/dev ## measure two gateways and shards beside one of each: ARGS="--postgresql"
	$(BIN)/python -m benchmarks.scaling $(ARGS)

road: $(VENV)/dev ## count the files, functions and calls of one request: ARGS="--calls --only encrypt"
	$(BIN)/python -m benchmarks.road $(ARGS)

messages: $(VENV)/dev ## list every text that users can meet: ARGS="--group CLI", or ARGS="--draw 20 --seed 1"
	@$(BIN)/python -m tests.messages $(ARGS)

texts: $(VENV)/dev ## find the portal's texts for its catalogues, and compile the translations
	$(BIN)/python -m tests.texts

docs: $(VENV)/dev ## write the generated tables of the documentation
	$(BIN)/python -m tests.docs

differential: $(VENV)/dev ## send the same raw requests to two versions: ARGS="--against REVISION"
	$(BIN)/python -m tests.differential $(ARGS)

fuzz: $(VENV)/run .venv-fuzz/made ## send generated requests: make fuzz ARGS="--cases 20000 --seed 1"
	.venv-fuzz/bin/python -m tests.fuzz.generated_requests --pqkeepd $(BIN)/pqkeepd $(ARGS)

mutants: $(VENV)/dev .venv-mutants/made ## change the code that decides, one place at a time, and see the tests notice: make mutants ARGS="--module dem"
	.venv-mutants/bin/python -m tests.mutants --python $(BIN)/python $(ARGS)

openid: $(VENV)/dev .node/made ## sign people in by oidc-provider, which node runs
	$(BIN)/pytest -n 0 -m campaign tests/contract/test_oidc_provider.py $(ARGS)

simulate: $(VENV)/dev ## run both processes on a seeded event loop with faults: make simulate ARGS="--seeds 10000"
	$(BIN)/python -m tests.simulation $(ARGS)

crashes: $(VENV)/dev ## kill an installation under load, 50 times, and check its data
	$(BIN)/python -m tests.crash_recovery $(ARGS)

cluster: $(VENV)/dev ## load 3 gateways and 2 shards with standbys, each part away in turn: 5 minutes
	$(BIN)/python -m tests.cluster $(ARGS)

moves: $(VENV)/dev ## move 1,000 tenants between two shards under load: make moves ARGS="--postgresql"
	$(BIN)/python -m tests.shards.moves $(ARGS)

migration: $(VENV)/dev ## move 100,000 rows and 1,000 files by a campaign, killed twice, and check each
	$(BIN)/python -m benchmarks.migration $(ARGS)

races: $(VENV)/dev ## use each single-use token 32 times at once, repeatedly
	PQKEEP_ROUNDS=200 $(BIN)/pytest $(RACES) --timeout 1200 -m "" -k once $(ARGS)

interop: $(VENV)/dev .interop/made .interop/age .interop/kubernetes .interop/cms .interop/go .interop/typescript ## run the Go and TypeScript clients, Transit's clients, age, SOPS, Bouncy Castle, OpenSSL 3.5 and kube-apiserver's code: needs Go and npm; Maven, mmdebstrap and PQKEEP_OPENBAO=bao add theirs
	$(BIN)/pytest -n 0 -m campaign tests/transit tests/age tests/kubernetes tests/cms tests/clients tests/typescript $(ARGS)

typescript: $(VENV)/dev ## generate the TypeScript client's types from the API: needs npm
	cd clients/typescript && npm ci --silent --ignore-scripts --no-audit --no-fund
	$(BIN)/python -m tests.typescript

witnesses: $(VENV)/dev .interop/witness ## have a witness of another implementation cosign the log and refuse a fork: needs Go
	$(BIN)/pytest -n 0 -m "" tests/witnesses $(ARGS)

watchers: $(VENV)/dev .interop/alerts ## cause faults, and see alerts, doctor and runbooks notice and end them: needs Go
	$(BIN)/pytest -n 0 -m campaign tests/watchers $(ARGS)

campaigns: $(VENV)/dev .venv-site/made ## kill processes, fill disks, stop servers, and try the cases that make test leaves out
	$(BIN)/pytest -n 3 -m campaign $(ARGS)

failpoints: $(VENV)/dev ## kill key changes, backups and restores at every step
	PQKEEP_EXHAUSTIVE=1 $(BIN)/pytest -m campaign tests/backup/test_failpoints.py --timeout 1800 $(ARGS)

soak: $(VENV)/dev ## hold 4,100 hostile connections of each kind against a gateway: ten minutes
	$(BIN)/python -m tests.connections $(ARGS)

screenshots: $(VENV)/dev ## photograph every page of the portal into screenshots/: needs Debian's chromium
	$(BIN)/python -m tests.portal.screenshots $(ARGS)

wheels: $(VENV)/run ## build the five wheels into dist/, with locked requirements, deploy/ and hashes
	rm -rf dist
	umask 022 && $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist $(DISTRIBUTIONS:%=./%)
	install -m 0644 $(LOCKED) dist
	tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --create deploy | gzip --no-name > dist/deploy.tar.gz
	cd dist && sha256sum -- * > SHA256SUMS

release: wheels $(VENV)/dev ## complete dist/ with packages, bundles, bills of materials, chart, notes: ARGS="--key FILE" signs it
	$(BIN)/python -m release $(ARGS)

release-check: $(VENV)/dev ## install, use, upgrade, remove and purge the release in bare Debian 12 and 13: needs root and mmdebstrap
	$(BIN)/python -m tests.release bookworm
	$(BIN)/python -m tests.release trixie

images: ## build the container images from dist/ into dist/: needs make wheels, root, buildah and mmdebstrap
	@deploy/containers/images

imagecheck: $(VENV)/dev .venv-deploy/made ## run the chart's pods and jobs from the images in dist/, without a cluster: needs root
	PATH=$(CURDIR)/.venv-deploy/bin:$$PATH $(BIN)/python -m tests.deploy images

deploycheck: $(VENV)/dev .venv-deploy/made ## check deploy/ with systemd-analyze, helm and the Kubernetes schemas
	PATH=$(CURDIR)/.venv-deploy/bin:$$PATH PQKEEP_EXHAUSTIVE=1 $(BIN)/pytest -n 0 tests/deploy $(ARGS)

debian13: wheels $(VENV)/dev ## install and use pqkeep in a Debian 13 of its own: needs root and mmdebstrap
	$(BIN)/python -m tests.deploy trixie $(ARGS)

debian12: wheels $(VENV)/dev ## the same in a Debian 12: its OpenSSL has no post-quantum key exchange
	$(BIN)/python -m tests.deploy bookworm $(ARGS)

lock: $(VENV)/dev ## lock dependencies with hashes
	requirements/lock $(BIN)/uv

passwords: $(VENV)/dev ## write the list of common passwords again
	requirements/common-passwords $(BIN)

clean: ## remove everything that the other targets create
	rm -rf clients/typescript/node_modules clients/typescript/dist clients/typescript/build .venv .venv-* .node .interop .debian .release .images site screenshots .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "pqkeep needs Python 3.11 or later; name one with PYTHON=" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/run: $(BIN)/pip requirements/run.txt requirements/build.txt $(METADATA)
	@echo "installing the dependencies into $(VENV), which takes a minute or two:"
	@$(call INSTALL_TELLING,requirements/run.txt -r requirements/build.txt)
	@echo "installing pqkeep: $(DISTRIBUTIONS)"
	@$(INSTALL) --no-deps --no-build-isolation $(DISTRIBUTIONS:%=--editable ./%)
	@echo "pqkeep is installed"
	@touch $@

$(VENV)/dev: $(VENV)/run requirements/dev.txt
	@echo "installing the tools for tests and checks:"
	@$(call INSTALL_TELLING,requirements/dev.txt)
	@touch $@

.node/made: tests/openid/package-lock.json
	@mkdir -p .node
	@cp tests/openid/package.json tests/openid/package-lock.json .node
	@cd .node && npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@

.interop/made: tests/transit/build tests/transit/go/main.go tests/transit/go/go.mod tests/transit/spring/pom.xml tests/transit/spring/src/main/java/Interop.java
	@mkdir -p .interop
	@tests/transit/build .interop
	@touch $@

.interop/age: tests/age/build
	@mkdir -p .interop
	@tests/age/build .interop
	@touch $@

.interop/kubernetes: tests/kubernetes/build tests/kubernetes/go/main.go tests/kubernetes/go/go.mod
	@mkdir -p .interop
	@tests/kubernetes/build .interop
	@touch $@

.interop/cms: tests/cms/build tests/cms/bouncycastle/pom.xml tests/cms/bouncycastle/src/main/java/Cms.java
	@mkdir -p .interop
	@tests/cms/build .interop
	@touch $@

.interop/go: tests/clients/build $(shell find clients/go -name '*.go' 2> /dev/null) clients/go/go.mod
	@mkdir -p .interop
	@tests/clients/build .interop
	@touch $@

.interop/typescript: tests/typescript/build $(shell find clients/typescript/src clients/typescript/test -name '*.ts' 2> /dev/null) clients/typescript/package-lock.json
	@mkdir -p .interop
	@tests/typescript/build
	@touch $@

.interop/witness: tests/witnesses/build tests/witnesses/go/main.go tests/witnesses/go/go.mod
	@mkdir -p .interop
	@tests/witnesses/build .interop
	@touch $@

.interop/alerts: tests/watchers/build tests/watchers/go/main.go tests/watchers/go/go.mod
	@mkdir -p .interop
	@tests/watchers/build .interop
	@touch $@

.venv-fuzz/made: requirements/fuzz.txt
	@echo "creating .venv-fuzz"
	@$(PYTHON) -m venv .venv-fuzz
	@.venv-fuzz/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/fuzz.txt
	@touch $@

.venv-site/made: requirements/site.txt
	@echo "creating .venv-site"
	@$(PYTHON) -m venv .venv-site
	@.venv-site/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/site.txt
	@touch $@

.venv-mutants/made: requirements/mutants.txt
	@echo "creating .venv-mutants"
	@$(PYTHON) -m venv .venv-mutants
	@.venv-mutants/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/mutants.txt
	@touch $@

.venv-deploy/made: requirements/deploy.txt $(wildcard tests/deploy/go/* tests/deploy/go/*/*)
	@echo "creating .venv-deploy, with helm (some minutes)"
	@$(PYTHON) -m venv .venv-deploy
	@.venv-deploy/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/deploy.txt
	@GOBIN=$(CURDIR)/.venv-deploy/bin go install $(HELM)
	@go -C tests/deploy/go build -o $(CURDIR)/.venv-deploy/bin ./...
	@touch $@
