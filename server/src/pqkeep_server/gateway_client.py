"""The operator's requests to a running gateway, over its HTTP API."""

import http.client
import json
import re
import shlex
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pqkeep_gateway.access.credentials import CredentialKind, kind_of
from pqkeep_protocol.documents import decode_json
from pqkeep_protocol.startup.secret_files import read_secret_text
from pqkeep_protocol.startup.settings import ConfigError

TIMEOUT_SECONDS = 15.0
MAX_RESPONSE = 64 * 1024
"""The most bytes of a response."""
SAFE_ADDRESS = r"^(https://[^/?#@]+|http://127\.0\.0\.1(:[0-9]+)?)/?$"
PASSWORD = "CHOOSE ONE"  # noqa: S105 - too short to be accepted as it is


class GatewayError(Exception):
    """The gateway refused or did not respond."""

    def __init__(self, message: str, code: str = "") -> None:
        """Take a message and the documented error code, if there is one."""
        super().__init__(message)
        self.code = code


def read_credential(path: Path) -> str:
    """Read the operator's credential from a secret file. Raises ConfigError."""
    text = read_secret_text(path, "operator's credential")
    if kind_of(text) is not CredentialKind.OPERATOR:
        raise ConfigError(f"{path} does not have an operator's credential")
    return text


def invitation_link(base_url: str, token: str) -> str:
    """Return the portal's page that accepts an invitation."""
    return f"{base_url.rstrip('/')}/portal/invitation#{token}"


def accept_invitation_command(base_url: str, token: str, ca_file: Path | None = None) -> str:
    """Return a shell command that accepts an invitation, with a placeholder for the password."""
    trusted = "" if ca_file is None else f" --cacert {shlex.quote(str(ca_file))}"
    body = json.dumps({"token": token, "password": PASSWORD}, separators=(",", ":"))
    return (
        f"curl -sS{trusted} {base_url.rstrip('/')}/api/v1/auth/accept-invitation -c cookies.txt"
        f" -H 'Content-Type: application/json' -d '{body}'"
    )


class GatewayClient:
    """Calls the gateway with the operator's credential."""

    def __init__(self, url: str, credential: str, ca_file: Path | None = None) -> None:
        """Make a client without connecting. A PEM CA file replaces the system's authorities.

        Raises ConfigError for an address without HTTPS, except 127.0.0.1.
        """
        if not re.match(SAFE_ADDRESS, url):
            raise ConfigError("the gateway's address must be https, or http on 127.0.0.1")
        self._address = urlsplit(url)
        self._credential = credential
        self._tls = None
        if self._address.scheme == "https" or ca_file is not None:
            try:
                self._tls = ssl.create_default_context(cafile=ca_file)
            except OSError as error:
                raise ConfigError(f"cannot use the CA file {ca_file}: {error.strerror}") from None

    def create_tenant(self, name: str, plan: str) -> str:
        """Create a tenant; return its id. Raises GatewayError."""
        return str(self._request("POST", "/api/v1/tenants", {"name": name, "plan": plan})["id"])

    def create_api_key(self, tenant: str) -> str:
        """Create and return a tenant's API key. Raises GatewayError."""
        return str(self._request("POST", f"/api/v1/tenants/{tenant}/api-keys")["api_key"])

    def invite(self, tenant: str, email: str, role: str) -> str:
        """Invite a person to a tenant; return the invitation's token. Raises GatewayError."""
        body = {"email": email, "role": role}
        response = self._request("POST", f"/api/v1/tenants/{tenant}/invitations", body)
        return str(response["invitation_token"])

    def _request(self, method: str, path: str, body: object = None) -> Any:
        headers = {"X-API-Key": self._credential, "Content-Type": "application/json"}
        connection = self._connection()
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            body = connection.getresponse().read(MAX_RESPONSE)
            response = decode_json(body, dict[str, Any])
        except ssl.SSLCertVerificationError as error:
            raise GatewayError(
                f"the gateway's certificate is not trusted: {error.verify_message}; name its"
                " certificate authority with --ca-file"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise GatewayError(
                f"the gateway does not respond at {self._address.geturl()}: {error}"
            ) from None
        finally:
            connection.close()
        if "data" in response:
            return response["data"]
        refusal = response.get("error")
        if not isinstance(refusal, dict):
            raise GatewayError("the server at the address is not a pqkeep gateway")
        raise GatewayError(str(refusal.get("message")), str(refusal.get("error_code")))

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme == "https":
            return http.client.HTTPSConnection(
                host, port, timeout=TIMEOUT_SECONDS, context=self._tls
            )
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
