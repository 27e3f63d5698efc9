"""Every command and program of every page runs in a test, or is listed here with a reason.

Pages for users run in test_documents_in_order.py, pages for operators and auditors in
test_operators_pages.py, and all others here.
"""

from __future__ import annotations

import json
import re
import sqlite3
import tomllib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import mldsa
from sdk.tests.cli.transit_server import TOKEN, encrypted, running
from tests.docs.test_operators_pages import replaced
from tests.fixtures.certificate import new_certificate
from tests.fixtures.installation import Installation

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    {
        *(file for file in ROOT.glob("*.md") if file.name != "CHANGELOG.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
    }
)
FENCE = re.compile(r"^( *)```([a-z]+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
SHOWN = {"text"}
"""The language of output and formats."""
Shell = Callable[[str, Mapping[str, str]], str]

RUN: Mapping[str, str] = {
    "README.md sh": "test_documents_in_order.py::test_everything_in_order",
    "CONTRIBUTING.md sh": "test_operators_pages.py::test_targets_of_make_exist",
    "deploy/README.md toml": "test_operators_pages.py::test_settings_of_a_page_are_settings",
    "docs/age.md sh": "../age/test_clients.py::test_the_page_in_order",
    "docs/api.md bash": "test_every_snippet.py::test_requests_of_the_api_page",
    "docs/api.md json": "test_every_snippet.py::test_requests_of_the_api_page",
    "docs/audit.md json": "test_documented_audit.py::test_the_example_of_a_record_has_that_leaf",
    "docs/audit.md sh": "test_operators_pages.py::test_audit_in_order",
    "docs/cli.md sh": "test_documents_in_order.py::test_everything_in_order",
    "docs/cms.md sh": "test_every_snippet.py::test_cms_in_order",
    "docs/configuration-as-code.md sh": "test_every_snippet.py::test_configuration_as_code_in_order",
    "docs/configuration-as-code.md yaml": "test_every_snippet.py::test_configuration_as_code_in_order",
    "docs/configuration.md sh": "test_every_snippet.py::test_configuration_in_order",
    "docs/cryptography.md python": "test_documented_cryptography.py::test_the_programs_are_all_there",
    "docs/first-change.md diff": "test_first_change.py::test_the_page_works_in_one_try",
    "docs/first-change.md python": "test_first_change.py::test_the_page_works_in_one_try",
    "docs/first-change.md sh": "test_first_change.py::test_the_page_works_in_one_try",
    "docs/formats.md console": "test_every_snippet.py::test_formats_in_order",
    "docs/formats.md python": "test_every_snippet.py::test_formats_in_order",
    "docs/installation.md sh": "test_every_snippet.py::test_installation_in_order",
    "docs/installation.md toml": "test_operators_pages.py::test_settings_of_a_page_are_settings",
    "docs/installation.md yaml": "test_every_snippet.py::test_yaml_is_what_its_reader_takes",
    "docs/kubernetes-encryption.md sh": "test_every_snippet.py::test_kubernetes_encryption_in_order",
    "docs/kubernetes-encryption.md yaml": "../kubernetes/test_kube_apiserver.py::configuration",
    "docs/local-encryption.md python": "test_documents_in_order.py::test_everything_in_order",
    "docs/local-format.md python": "../../sdk/tests/local/test_documentation.py::",
    "docs/migrate.md python": "test_documents_in_order.py::test_everything_in_order",
    "docs/migration.md python": "test_every_snippet.py::test_migration_in_order",
    "docs/migration.md sh": "test_every_snippet.py::test_migration_in_order",
    "docs/observability.md toml": "test_operators_pages.py::test_settings_of_a_page_are_settings",
    "docs/observability.md yaml": "test_every_snippet.py::test_yaml_is_what_its_reader_takes",
    "docs/operations.md sh": "test_operators_pages.py::test_operations_in_order",
    "docs/operations.md toml": "test_operators_pages.py::test_settings_of_a_page_are_settings",
    "docs/performance.md sh": "test_operators_pages.py::test_targets_of_make_exist",
    "docs/release.md sh": "test_every_snippet.py::test_installation_in_order",
    "docs/runbooks.md sh": "test_runbooks.py::test_each_runbook_has_a_test",
    "docs/scaling.md sh": "test_operators_pages.py::test_shards_in_order",
    "docs/scaling.md toml": "test_operators_pages.py::test_settings_of_a_page_are_settings",
    "docs/sdk.md python": "test_documents_in_order.py::test_everything_in_order",
    "docs/sdk.md toml": "../../sdk/tests/test_documentation.py::",
    "docs/single-sign-on.md toml": "test_operators_pages.py::test_settings_of_a_page_are_settings",
    "docs/webhooks.md toml": "test_operators_pages.py::test_settings_of_a_page_are_settings",
    "docs/webhooks.md python": "../contract/test_webhooks.py::test_the_documented_receiver",
    "docs/testing.md sh": "test_operators_pages.py::test_targets_of_make_exist",
    "docs/tls.md sh": "test_every_snippet.py::test_renewal_in_order",
    "docs/tls.md toml": "test_operators_pages.py::test_settings_of_a_page_are_settings",
    "docs/transit.md sh": "test_every_snippet.py::test_moving_from_transit_in_order",
    "docs/try.md python": "test_documents_in_order.py::test_everything_in_order",
    "docs/try.md sh": "test_documents_in_order.py::test_everything_in_order",
    "docs/workloads.md http": "test_every_snippet.py::test_issuer_and_role_of_the_page",
}
"""A page and a language, and the test that runs these snippets."""

NOT_HERE: Mapping[str, str] = {
    "docs/configuration-as-code.md hcl": "needs Terraform: tests/transit sends its requests",
    "deploy/README.md sh": "needs docker: make imagecheck runs these services",
    "docs/go.md go": "parts of programs: tests/clients/test_go_client.py runs the whole one of the README",
    "docs/operations.md sql": "a superuser of a server: tests/backup has the same role",
    "docs/workloads.md bash": "needs a platform: tests/contract/test_workloads.py sets the variables",
    "docs/workloads.md yaml": "needs a kubelet",
}
"""Snippets without a test, with the reason."""

ELSEWHERE: Mapping[str, str] = {
    "sha256sum": "needs wheels: make debian13",
    "-m venv": "needs wheels: make debian13",
    "/opt/pqkeep": "needs wheels: make debian13",
    "tar --extract": "needs wheels: make debian13",
    "cd dist": "needs wheels: make debian13",
    "apt install": "needs a release: make release-check",
    "install.sh": "needs a release: make release-check",
    "pkeyutl -verify": "needs OpenSSL 3.5: make release-check",
    "openssl pkey -in": "needs OpenSSL 3.5: make release-check",
    "pqkeepd mail test": "needs a mail server: server/tests/test_command_line.py",
    "pqkeepd init": "makes users of the system: make debian13",
    "install -o": "needs these users: make debian13",
    "install -m": "needs systemd: make debian13",
    "install -d": "needs root: make debian13",
    "systemctl": "needs systemd: make debian13",
    "kubectl": "needs a cluster",
    "helm install": "needs a cluster; make deploycheck renders the chart",
    "podman load": "needs images: make imagecheck",
    "helm test": "needs a cluster; make imagecheck runs its pod",
    "openssl pkey -": "needs OpenSSL 3.5: make debian13",
    "openssl genpkey": "needs OpenSSL 3.5: make debian13",
    "s_client": "needs TLS: make debian13",
}
"""Commands of the pages below that do not run here, by a part of them."""


def snippets(page: Path) -> Iterator[tuple[str, str]]:
    """Yield language and text of each snippet of a page, without its indentation."""
    for indentation, language, text in FENCE.findall(page.read_text()):
        yield language, re.sub(rf"^{indentation}", "", text, flags=re.MULTILINE)


def commands(name: str) -> list[str]:
    """Return the commands of a page that run here, one text for each snippet."""
    return [
        "".join(
            command.removeprefix("$ ")
            for command in re.findall(r"(?:[^\n]*\\\n)*[^\n]*\n", text)
            if not any(part in command for part in ELSEWHERE)
        )
        for language, text in snippets(ROOT / "docs" / name)
        if language in {"sh", "console", "bash"}
    ]


def test_every_snippet_is_run_or_has_a_reason() -> None:
    """Each snippet of each page is in exactly one of the two tables, and the tables have no others."""
    found = {
        f"{page.relative_to(ROOT)} {language}"
        for page in PAGES
        for language, _ in snippets(page)
        if language not in SHOWN
    }
    assert found == RUN.keys() | NOT_HERE.keys()


@pytest.mark.parametrize("test", sorted({*RUN.values()}))
def test_the_named_test_exists(test: str) -> None:
    """The test named for snippets exists in its file."""
    file, name = test.split("::")
    assert f"def {name}" in (Path(__file__).parent / file).read_text()


def test_requests_of_the_api_page(installation: Installation, shell: Shell) -> None:
    """The page's command and requests succeed, and the response has the shown fields."""
    tenant = installation.new_tenant()
    batch, results, moved = (
        json.loads(text)
        for language, text in snippets(ROOT / "docs" / "api.md")
        if language == "json"
    )
    source = {"algorithm": moved["algorithm"]}
    tenant.post("/kms/keys/generate", source, status=201)
    moved["ciphertext"] = tenant.post("/kem/encrypt", {"plaintext": "AAAA", **source})["ciphertext"]
    (command,) = commands("api.md")
    said = json.loads(shell(command, installation.environment(tenant.api_key)))
    assert said["data"]["ciphertext"]
    tenant.post("/kms/keys/generate", {"algorithm": batch["algorithm"]}, status=201)
    given = tenant.post("/kem/encrypt/batch", batch)
    for shown, item in zip(results["results"], given["results"], strict=True):
        assert shown.keys() == item.keys()
        assert shown.get("error") == item.get("error")
        assert shown.get("data", {}).keys() == item.get("data", {}).keys()
    tenant.post("/kms/keyrings", {"name": moved["to"]["keyring"]}, status=201)
    tenant.post("/kms/keys/generate", moved["to"], status=201)
    assert tenant.post("/kem/re-encrypt", moved)["ciphertext"]


def test_formats_in_order(installation: Installation, shell: Shell, tmp_path: Path) -> None:
    """A public key is written as PEM, and a private key's file is imported, also from Python."""
    pem = mldsa.MLDSA65PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    by_command, by_program = installation.new_tenant(), installation.new_tenant()
    (program,) = (
        text for language, text in snippets(ROOT / "docs" / "formats.md") if language == "python"
    )
    public_key, imported = commands("formats.md")
    (tmp_path / "key.pem").write_bytes(pem)
    (tmp_path / "program.py").write_text(program)
    environment = installation.environment(by_command.api_key)
    shell(imported, environment)
    shell("python program.py", installation.environment(by_program.api_key))
    shell(f"rm key.pem\n{public_key}", environment)
    assert b"BEGIN PUBLIC KEY" in (tmp_path / "key.pem").read_bytes()


def test_cms_in_order(installation: Installation, shell: Shell, tmp_path: Path) -> None:
    """A file is encrypted, decrypted, signed and verified as CMS."""
    (tmp_path / "report.pdf").write_bytes(b"a report")
    (page,) = commands("cms.md")
    shell(page, installation.environment(installation.new_tenant().api_key))
    assert (tmp_path / "copy.pdf").read_bytes() == b"a report"


def test_kubernetes_encryption_in_order(installation: Installation, shell: Shell) -> None:
    """The plugin's keyring is created with its label. Later its key is rotated."""
    tenant = installation.new_tenant()
    for text in commands("kubernetes-encryption.md"):
        shell(text, installation.environment(tenant.api_key))
    assert "protected" in tenant.get("/kms/keyrings/kubernetes")["labels"]


def test_issuer_and_role_of_the_page(installation: Installation) -> None:
    """The operator puts the page's issuer and role; the exchange has the described fields."""
    operator, tenant = installation.operator(), installation.new_tenant()
    tenant.post("/kms/keyrings", {"name": "releases"}, status=201)
    requests = [
        (method, path.format(tenant_id=tenant.tenant_id), json.loads(body))
        for language, text in snippets(ROOT / "docs" / "workloads.md")
        if language == "http"
        for method, path, body in re.findall(
            r"^([A-Z]+) /api/v1(\S+)\n(\{.*?\}\n)(?=\n|\Z)", text, re.DOTALL | re.MULTILINE
        )
    ]
    *changes, (method, path, body) = requests
    assert len(changes) == 2
    for change in changes:
        assert operator.ask(*change).is_success
    response = operator.ask(method, path, {**body, "role": f"{tenant.tenant_id}/deploy"})
    assert "subject_token" in response.text or response.status_code == 401, response.text


def test_configuration_as_code_in_order(
    installation: Installation, shell: Shell, tmp_path: Path
) -> None:
    """The page's first file makes its tenant, once; its second one goes into a settings file."""
    page = ROOT / "docs" / "configuration-as-code.md"
    first, second = (text for language, text in snippets(page) if language == "yaml")
    (tmp_path / "acme.yaml").write_text(first)
    (tmp_path / "providers.yaml").write_text(second)
    (tmp_path / "gateway.toml").write_text("port = 8080\n")
    operator = installation.environment(installation.ready["operator_key"])
    applying, exporting = commands("configuration-as-code.md")
    shell(applying, operator)
    shell(replaced(exporting, {"export-config": "export-config --tenant Acme"}), operator)
    exported = yaml.safe_load((tmp_path / "installation.yaml").read_text())["tenants"][0]
    assert exported.keys() == yaml.safe_load(first)["tenants"][0].keys() | {"status"}
    shell("pqkeep apply -f providers.yaml --gateway-settings gateway.toml", operator)
    settings = tomllib.loads((tmp_path / "gateway.toml").read_text())
    assert settings["single_sign_on"][0]["issuer"] in second


@pytest.mark.campaign
def test_migration_in_order(installation: Installation, shell: Shell, tmp_path: Path) -> None:
    """The page's commands move files, rows and data under RSA, and sign a bill of materials."""
    tenant = installation.new_tenant()
    for algorithm in ("Kyber768", "X-Wing", "Dilithium3"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    campaign = {"sources": [{"algorithm": "Kyber768"}], "target": {"algorithm": "X-Wing"}}
    assert tenant.ask("PUT", "/campaigns/cards-2026", campaign).status_code == 200
    envelope = {"plaintext": "AAAA", "format": "envelope"}
    sealed = tenant.post("/kem/encrypt", envelope)["envelope"]
    for place in ("contracts", "documents"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "one").write_text(sealed)
    with closing(sqlite3.connect(tmp_path / "cards.db")) as connection, connection:
        connection.execute("CREATE TABLE cards (id INTEGER PRIMARY KEY, number TEXT)")
        connection.execute("INSERT INTO cards (number) VALUES (?)", (sealed,))
    (tmp_path / "database").write_text(f"sqlite:///{tmp_path / 'cards.db'}\n")
    environment = installation.environment(tenant.api_key)
    made = new_certificate(tmp_path, "web")
    made.path.rename(tmp_path / "certificates.pem")
    for text in commands("migration.md"):
        shell(replaced(text, {r"/srv/(contracts|documents)": r"\1"}), environment)
    for language, program in snippets(ROOT / "docs" / "migration.md"):
        if language == "python":
            (tmp_path / "program.py").write_text(program)
            shell("python program.py", environment)
    with closing(sqlite3.connect(tmp_path / "cards.db")) as connection:
        (number,) = connection.execute("SELECT number FROM cards").fetchone()
    assert {number[:7], (tmp_path / "documents" / "one").read_text()[:7]} == {"pqk1.Ag"}
    contract = (tmp_path / "contracts" / "one").read_text().strip()
    assert tenant.post("/kem/decrypt", {"envelope": contract})["algorithm"] == "ML-KEM-1024"
    assert json.loads((tmp_path / "cbom.json").read_text())["bomFormat"] == "CycloneDX"
    assert (tmp_path / "cbom.json.jws").exists()
    body = {
        "ciphertext": b64encode((tmp_path / "secret.x-wing").read_bytes()).decode(),
        "key_version": 1,
        "algorithm": "X-Wing",
    }
    assert tenant.post("/kem/decrypt", body)["plaintext"] == b64encode(b"an old secret\n").decode()


def test_moving_from_transit_in_order(
    installation: Installation, shell: Shell, tmp_path: Path
) -> None:
    """A policy becomes scopes, and a table's ciphertexts move from an old service."""
    tenant = installation.new_tenant()
    address, policy, table, move = commands("transit.md")
    with running() as old:
        environment = {**installation.environment(tenant.api_key), "VAULT_TOKEN": TOKEN}
        shell(address, environment)
        scopes = json.loads(shell(policy, environment))
        assert scopes == [{"operations": ["encrypt", "decrypt"], "keyrings": ["orders"]}]
        shell(table.replace("vault:v1:OLD", encrypted("cards", b"4111-1111")), environment)
        shell(replaced(move, {"https://vault.example.com:8200": old}), environment)
    first, second = (tmp_path / "moved.csv").read_text().splitlines()
    assert first == "id,ciphertext,pqkeep_ciphertext,pqkeep_error"
    assert second.split(",")[2].startswith("vault:v4:")


def test_configuration_in_order(installation: Installation, shell: Shell) -> None:
    """The page's settings and environment variables are accepted."""
    settings = installation.data / "gateway" / "settings.toml"
    places = {r"\bDIR\b": str(installation.data), r"\bFILE\b": str(settings)}
    check, variables = commands("configuration.md")
    shell(replaced(check, places), {})
    shell(f"{variables}\npqkeepd config check {settings}", {})


def test_renewal_in_order(shell: Shell, tmp_path: Path) -> None:
    """The hook for certbot copies certificate and key with their modes, and reloads the gateways."""
    for name in ("live", "gateway", "bin"):
        (tmp_path / name).mkdir()
    for name in ("privkey.pem", "fullchain.pem"):
        (tmp_path / "live" / name).write_text(name)
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.write_text('#!/bin/sh\necho "$@" >> reloaded\n')
    systemctl.chmod(0o700)
    places = {"/var/lib/pqkeep/gateway": "gateway", "-o pqkeep-gateway -g pqkeep-gateway ": ""}
    scripts = [text for language, text in snippets(ROOT / "docs" / "tls.md") if language == "sh"]
    ran = [script for script in scripts if "s_client" not in script]
    for script in ran:
        shell(
            f"PATH=$PWD/bin:$PATH\n{replaced(script, places)}",
            {"RENEWED_LINEAGE": str(tmp_path / "live")},
        )
    assert (tmp_path / "gateway" / "key.pem").stat().st_mode & 0o777 == 0o400
    assert len((tmp_path / "reloaded").read_text().splitlines()) == len(ran)


def test_installation_in_order(installation: Installation, shell: Shell, tmp_path: Path) -> None:
    """A certificate, a tenant, an API key and an owner are made as the page says."""
    tenant = installation.new_tenant()
    operator_key = tmp_path / "operator.key"
    operator_key.write_text(installation.ready["operator_key"])
    operator_key.chmod(0o400)
    places = {
        "https://HOST:8443": installation.base_url,
        r"\bHOST\b": "keep.example.org",
        r"\bpqo_…": installation.ready["operator_key"],
        r"\bID\b": tenant.tenant_id,
    }
    for script in commands("installation.md"):
        said = shell(replaced(script, places), {})
        assert '"error"' not in said
    assert (tmp_path / "fullchain.pem").read_text().startswith("-----BEGIN CERTIFICATE-----")


def test_yaml_is_what_its_reader_takes() -> None:
    """The chart has the page's values, and Prometheus accepts the named files."""
    (values,) = (
        yaml.safe_load(text)
        for language, text in snippets(ROOT / "docs" / "installation.md")
        if language == "yaml"
    )
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "pqkeep" / "values.yaml").read_text())
    assert values["gateway"].keys() <= chart["gateway"].keys()
    (prometheus,) = (
        yaml.safe_load(text)
        for language, text in snippets(ROOT / "docs" / "observability.md")
        if language == "yaml"
    )
    for file in prometheus["rule_files"]:
        assert (ROOT / "deploy" / "observability" / file).is_file()
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
