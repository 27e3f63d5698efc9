"""The web site that ``make site`` makes from the Markdown files, by Sphinx.

The links of the Markdown files work on a source host and in the site. A dead link or a dead anchor
ends the build. The navigation is the list of all pages in docs/README.md.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

MAP = "docs/README"
GROUP = re.compile(r"^\*\*(.+)\*\*$", re.MULTILINE)
SECTION = re.compile(r'<section id="([^"]+)">\n<h([1-6])>')
LINK = re.compile(r"\]\(([^)#]+)\.md\)")

INDEX = """<!doctype html>
<html lang="en"><title>pqkeep</title><meta http-equiv="refresh" content="0; url=README.html"></html>
"""

project = "pqkeep"
project_copyright = "the pqkeep authors"
root_doc = "README"
extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/**.md", "deploy/**.md"]
nitpicky = True
suppress_warnings = [
    "misc.highlighting_failure",  # JSON with an ellipsis
    "toc.not_included",  # design decisions are reached from their list
]
myst_enable_extensions = ["tasklist"]
myst_heading_anchors = 4

templates_path = ["templates"]
html_theme = "furo"
html_title = "pqkeep"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_use_index = False
html_copy_source = False
html_show_sphinx = False
html_permalinks_icon = "#"
html_context = {
    # Words that people type for a page that has others, or that several pages have.
    "search_words": {
        "README": "features comparison harvest now decrypt later license licence",
        "CHANGELOG": "release notes versions",
        "CONTRIBUTING": "contributing contribute development pull request",
        "SECURITY": "threat model vulnerability disclosure attackers CVE report",
        "deploy/README": "Docker Podman compose Valkey Redis PostgreSQL",
        "docs/api": "endpoints REST OpenAPI API keys scopes policy rate limit quota idempotency keyring"
        " batch step-up MFA TOTP passkey passkeys WebAuthn approval four-eyes roles tenants errors 401 403 404 429 503 archive delete destroy key password reset billing",
        "docs/architecture": "design overview components layers",
        "docs/audit": "Merkle tree verify checkpoints transparency log evidence witness witnesses cosignature",
        "docs/cli": "CLI command-line cli terminal shell tutorial",
        "docs/configuration": "settings options parameters",
        "docs/cryptography": "algorithms FIPS ML-KEM ML-DSA SLH-DSA X-Wing composite Kyber Dilithium sphincs hybrid",
        "docs/formats": "PEM DER JWK JWS JWKS import key PKCS#8 HPKE",
        "docs/first-change": "new endpoint tutorial develop",
        "docs/glossary": "glossary terms definitions vocabulary",
        "docs/hardening": "checklist best practices secure production",
        "docs/installation": "install deploy production Kubernetes Helm upgrade systemd Debian k8s",
        "docs/local-encryption": "encrypt files recipients large",
        "docs/local-format": "file format test vectors bytes",
        "docs/migrate": "AWS KMS Google Cloud Azure migrate",
        "docs/migration": "legacy RSA OAEP ECDSA campaign inventory rule exception CBOM re-encrypt deprecation canary"
        " bill of materials migration report",
        "docs/observability": "metrics Prometheus Grafana monitoring health probes tracing OpenTelemetry"
        " alerts readiness",
        "docs/operations": "backup restore SIEM syslog streaming mail SMTP email reverse proxy nginx root key"
        " HSM PKCS#11 KMS Stripe logs operators",
        "docs/performance": "p99 latency throughput benchmark sizing capacity memory CPU",
        "docs/portal": "web interface UI dashboard console invite team members notices export CSV filters search",
        "docs/runbooks": "rotate revoke stolen lost leaked compromised disk full clock incident emergency"
        " disaster recovery troubleshooting",
        "docs/scaling": "high availability HA failover standby replica shards cluster drain load balancer",
        "docs/sdk": "Python SDK library asyncio async retries timeout CNSA compliance",
        "docs/single-sign-on": "SSO OIDC OpenID Connect SAML Keycloak Okta LDAP login identity provider",
        "docs/testing": "tests pytest coverage",
        "docs/tls": "TLS HTTPS SSL certificate renewal Let's Encrypt certbot ACME X25519MLKEM768",
        "docs/transit": "Vault OpenBao Transit hvac SOPS Terraform auto-unseal Spring bao",
        "docs/webhooks": "webhook webhooks callback signed messages Standard Webhooks",
        "docs/try": "quickstart getting started tutorial demo first steps",
    }
}


def navigation(pages: str) -> str:
    """Return the groups of pages in docs/README.md as tables of contents that are not shown."""
    _, *parts = GROUP.split(pages.split("\n## All pages\n", 1)[1])
    tables = []
    for caption, links in zip(parts[::2], parts[1::2], strict=True):
        names = dict.fromkeys(
            f"docs/{name}".replace("docs/../", "") for name in LINK.findall(links)
        )
        lines = ["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", ""]
        tables.append("\n".join(lines))
    return "".join(tables)


def add_navigation(app: Sphinx, document: str, source: list[str]) -> None:
    """Give the first page the navigation."""
    if document == root_doc:
        pages = (app.srcdir / f"{MAP}.md").read_text()
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{MAP}\n```\n{navigation(pages)}"
        app.env.note_dependency(f"{MAP}.md")


def name_headings(
    _app: Sphinx, _name: str, _template: str, context: dict[str, Any], _tree: object
) -> None:
    """Move the name of each section to its heading, to which the search leads."""
    context["body"] = SECTION.sub(r'<section>\n<h\2 id="\1">', context.get("body", ""))


def add_index(app: Sphinx, exception: Exception | None) -> None:
    """Lead the address of the site to its first page."""
    if exception is None:
        (app.outdir / "index.html").write_text(INDEX)


def setup(app: Sphinx) -> None:
    """Register what the site has beyond Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("html-page-context", name_headings)
    app.connect("build-finished", add_index)
