"""Describes certificates as a bill of materials of CycloneDX, for the inventory.

    document = bill_of_materials(Path("web.pem").read_bytes(), place="web-1", owner="web team")
    client.inventory.import_external("tls", document)

It needs the extra ``pqkeep[local]``. Private keys are never read.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pqkeep.errors import UnreadableInputError, how_to_install

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        f"reading certificates is not installed: {how_to_install('local')}", name="cryptography"
    ) from None

__all__ = ["bill_of_materials"]

_NIST = "2.16.840.1.101.3.4"
_CATEGORIES: Mapping[str, tuple[str, int]] = {
    f"{_NIST}.3.17": ("ML-DSA-44", 2),
    f"{_NIST}.3.18": ("ML-DSA-65", 3),
    f"{_NIST}.3.19": ("ML-DSA-87", 5),
    f"{_NIST}.4.1": ("ML-KEM-512", 1),
    f"{_NIST}.4.2": ("ML-KEM-768", 3),
    f"{_NIST}.4.3": ("ML-KEM-1024", 5),
    **{
        f"{_NIST}.3.{arc}": (f"SLH-DSA-{family}-{size}{kind}", {128: 1, 192: 3, 256: 5}[size])
        for arc, (family, size, kind) in enumerate(
            (
                (family, size, kind)
                for family in ("SHA2", "SHAKE")
                for size in (128, 192, 256)
                for kind in "sf"
            ),
            start=20,
        )
    },
}
"""Name and NIST security category of post-quantum algorithms, by object identifier."""
_OTHER: Mapping[str, str] = {"1.3.101.112": "Ed25519", "1.3.101.113": "Ed448"}


def bill_of_materials(data: bytes, *, place: str = "", owner: str = "", successor: str = "") -> str:
    """Return the certificates in PEM or DER as JSON text of CycloneDX 1.6.

    Texts that are given apply to each certificate. Raises UnreadableInputError.
    """
    certificates = _read(data)
    said = {"place": place, "owner": owner, "successor": successor}
    properties = [
        {"name": f"pqkeep:{name}", "value": value} for name, value in said.items() if value
    ]
    algorithms: dict[str, dict[str, Any]] = {}
    components: list[dict[str, Any]] = []
    for certificate in certificates:
        name, level = _algorithm(certificate)
        algorithms[name] = _asset(
            name,
            {
                "assetType": "algorithm",
                "algorithmProperties": {"nistQuantumSecurityLevel": level},
            },
        ) | {"bom-ref": f"algorithm:{name}"}
        subject = certificate.subject.rfc4514_string()
        described = {
            "subjectName": subject,
            "issuerName": certificate.issuer.rfc4514_string(),
            "notValidBefore": f"{certificate.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}",
            "notValidAfter": f"{certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}",
            "subjectPublicKeyRef": f"algorithm:{name}",
            "certificateFormat": "X.509",
        }
        crypto = {"assetType": "certificate", "certificateProperties": described}
        shown = subject or f"serial number {certificate.serial_number:x}"
        components.append(
            _asset(shown, crypto) | ({"properties": properties} if properties else {})
        )
    return json.dumps(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "components": [*algorithms.values(), *components],
        },
        ensure_ascii=False,
    )


def _read(data: bytes) -> Sequence[x509.Certificate]:
    try:
        if b"-----BEGIN" in data:
            return x509.load_pem_x509_certificates(data)
        return [x509.load_der_x509_certificate(data)]
    except ValueError:
        raise UnreadableInputError(
            "it has no certificate in PEM or DER", "name a file with certificates"
        ) from None


def _algorithm(certificate: x509.Certificate) -> tuple[str, int]:
    """Return the name and the NIST security category of a certificate's key; 0: it has none."""
    identifier = certificate.public_key_algorithm_oid.dotted_string
    if identifier in _CATEGORIES:
        return _CATEGORIES[identifier]
    try:
        key = certificate.public_key()
    except (UnsupportedAlgorithm, ValueError):
        return _OTHER.get(identifier, identifier), 0
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA-{key.key_size}", 0
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"ECDSA-{key.curve.name}", 0
    return _OTHER.get(identifier, identifier), 0


def _asset(name: str, crypto: dict[str, Any]) -> dict[str, Any]:
    return {"type": "cryptographic-asset", "name": name, "cryptoProperties": crypto}
