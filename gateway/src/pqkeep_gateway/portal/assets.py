"""Style sheets, modules and icons. Their URLs change with their content."""

import gzip
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

from pqkeep_gateway.http.static_document import StaticDocument

PREFIX = "/portal/static"
TYPES: Mapping[str, str] = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS: Mapping[str, str] = {
    "Cross-Origin-Resource-Policy": "same-origin",
}
IMMUTABLE = "public, max-age=31536000, immutable"


@cache
def contents() -> Mapping[str, bytes]:
    """Return every file by its name."""
    folder = files(__package__).joinpath("static")
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir(), key=lambda f: f.name)}


@cache
def version() -> str:
    """Return a digest of all files. One version for all, since modules import relative names."""
    digest = sha256()
    for name, content in contents().items():
        digest.update(b"%b\0%d\0%b" % (name.encode(), len(content), content))
    return digest.hexdigest()[:16]


def url(name: str) -> str:
    """Return a file's path. Raises KeyError if the file does not exist."""
    _ = contents()[name]
    return f"{PREFIX}/{version()}/{name}"


def documents() -> Mapping[str, StaticDocument]:
    """Return every file by its path."""
    return {
        url(name): StaticDocument(
            content,
            TYPES[name.rsplit(".", 1)[1]],
            HEADERS,
            cache_control=IMMUTABLE,
            gzipped=gzip.compress(content, mtime=0),
        )
        for name, content in contents().items()
    }
