"""Bills of materials of CycloneDX: the packages in each file of a release."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.wheels import Wheel


def bill(
    name: str,
    version: str,
    roots: Iterable[str],
    wheels: Iterable[Wheel],
    values: Iterable[Mapping[str, str]],
    epoch: int,
) -> bytes:
    """Return the bill of one file, as JSON: each wheel with its hash, licence and dependencies.

    ``roots`` are requirements (``name[extra]``) of the file itself. ``values`` are those of markers,
    for each Python that the file serves.
    """
    files: dict[str, list[Wheel]] = {}
    for wheel in sorted(wheels, key=lambda wheel: wheel.path.name):
        files.setdefault(wheel.name, []).append(wheel)
    components = {package: _component(found) for package, found in files.items()}
    itself = Component(
        name=name, version=version, type=ComponentType.APPLICATION, bom_ref=f"file:{name}"
    )
    digests = ",".join(wheel.digest for found in files.values() for wheel in found)
    bom = Bom(
        components=components.values(),
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{name}:{version}:{digests}"),
        metadata=BomMetaData(component=itself, timestamp=dt.datetime.fromtimestamp(epoch, dt.UTC)),
    )
    named = [Requirement(root) for root in roots]
    bom.register_dependency(
        itself, [components[str(canonicalize_name(root.name))] for root in named]
    )
    extras = {str(canonicalize_name(root.name)): root.extras for root in named}
    for package, found in files.items():
        needed = {
            str(canonicalize_name(requirement.name))
            for marker_values in values
            for requirement in found[0].needs(extras.get(package, ()), marker_values)
        }
        bom.register_dependency(
            components[package],
            [components[other] for other in sorted(needed) if other in components],
        )
    return JsonV1Dot6(bom).output_as_string(indent=1).encode() + b"\n"


def _component(files: list[Wheel]) -> Component:
    wheel = files[0]
    purl = PackageURL("pypi", None, wheel.name, wheel.version)
    licence = (
        wheel.metadata["License-Expression"] or _classified(wheel) or wheel.metadata["License"]
    )
    is_short = licence and len(licence) < 100  # noqa: PLR2004 - some have the whole text there
    return Component(
        name=wheel.name,
        version=wheel.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        description=wheel.metadata["Summary"],
        licenses=[LicenseFactory().make_from_string(licence)] if is_short else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=file.digest) for file in files],
    )


def _classified(wheel: Wheel) -> str:
    texts = wheel.metadata.get_all("Classifier", [])
    names = [text.rpartition(" :: ")[2] for text in texts if text.startswith("License ::")]
    return names[0] if len(names) == 1 else ""
