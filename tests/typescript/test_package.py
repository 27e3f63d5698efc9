"""The TypeScript client's files fit the API, and name no registry."""

from __future__ import annotations

import json

from tests.typescript.description import CLIENT, OPERATIONS, TYPES, digest


def test_generated_types_are_current() -> None:
    """The committed types are those of the present API. If this fails, run make typescript."""
    wanted = f"// SHA-256 of the description: {digest()}\n"
    assert wanted in TYPES.read_text()
    assert wanted in OPERATIONS.read_text()


def test_no_address_of_a_registry() -> None:
    """The lock file pins every package by its hash, and has no place to load it from."""
    packages = json.loads((CLIENT / "package-lock.json").read_text())["packages"]
    del packages[""]
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values())
    assert not list(CLIENT.glob(".npmrc"))
