"""A server that decrypts as the Transit engine of OpenBao 2.4 does.

``python transit_server.py [CERTIFICATE KEY]`` prints its address and serves until it is ended.
``encrypted`` makes ciphertexts for it.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TOKEN = "hvs.old-service-token"  # noqa: S105 - the token of this server only
LATEST = 3
KEYS: dict[str, dict[str, Any]] = {
    "cards": {"type": "aes256-gcm96", "derived": False, "latest_version": LATEST},
    "customers": {"type": "chacha20-poly1305", "derived": True, "latest_version": LATEST},
}
NONCE = 12


def _cipher(key: str, version: int, context: bytes) -> AESGCM:
    return AESGCM(hmac.digest(b"root", f"{key} {version} ".encode() + context, "sha256"))


def encrypted(
    key: str, plaintext: bytes, *, version: int = 1, context: bytes = b"", bound: bytes = b""
) -> str:
    """Return a ciphertext of this server."""
    nonce = os.urandom(NONCE)
    sealed = nonce + _cipher(key, version, context).encrypt(nonce, plaintext, bound)
    return f"vault:v{version}:{base64.b64encode(sealed).decode()}"


def _decrypted(key: str, item: dict[str, str]) -> dict[str, str]:
    reference = {"reference": item.get("reference", "")}
    try:
        return {"plaintext": _plaintext(key, item), **reference}
    except ValueError as error:
        return {"plaintext": "", "error": str(error), **reference}


def _plaintext(key: str, item: dict[str, str]) -> str:
    parts = item["ciphertext"].split(":")
    if parts[0] != "vault":
        raise ValueError("invalid ciphertext: no prefix")
    version = int(parts[1].removeprefix("v"))
    if version > LATEST:
        raise ValueError("invalid ciphertext: version is too new")
    if version < 1:
        raise ValueError("ciphertext or signature version is disallowed by policy (too old)")
    if KEYS[key]["derived"] and not item.get("context"):
        raise ValueError("missing 'context' for key derivation")
    sealed = base64.b64decode(parts[2])
    context, bound = (
        base64.b64decode(item.get(name, "")) for name in ("context", "associated_data")
    )
    cipher = _cipher(key, version, context if KEYS[key]["derived"] else b"")
    try:
        return base64.b64encode(cipher.decrypt(sealed[:NONCE], sealed[NONCE:], bound)).decode()
    except InvalidTag:
        raise ValueError("cipher: message authentication failed") from None


@contextmanager
def running(*arguments: str | Path) -> Iterator[str]:
    """Start a server that decrypts like Transit, and return its address."""
    program = [sys.executable, __file__, *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


class Handler(BaseHTTPRequestHandler):
    """The two endpoints that a move uses."""

    def do_GET(self) -> None:
        """Read a key."""
        key = KEYS.get(self.path.removeprefix("/v1/transit/keys/"))
        self._respond(404, {"errors": []}) if key is None else self._respond(200, {"data": key})

    def do_POST(self) -> None:
        """Decrypt a batch. Items that fail make the status 400, unless the request names another."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path.removeprefix("/v1/transit/decrypt/")
        if name not in KEYS:
            self._respond(400, {"errors": ["encryption key not found"]})
            return
        results = [_decrypted(name, item) for item in body["batch_input"]]
        status = 400 if any(result.get("error") for result in results) else 200
        self._respond(status, {"data": {"batch_results": results}})

    def _respond(self, status: int, body: dict[str, Any]) -> None:
        if self.headers.get("X-Vault-Token") != TOKEN:
            status, body = 403, {"errors": ["permission denied"]}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Write no log."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if sys.argv[1:]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*sys.argv[1:])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    sys.stdout.write(f"http{'s' * bool(sys.argv[1:])}://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
