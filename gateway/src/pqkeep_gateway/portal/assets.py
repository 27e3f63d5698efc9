"""Style sheets, modules and icons. Their URLs change with their content."""

import gzip
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

import msgspec

from pqkeep_gateway.http.static_document import StaticDocument
from pqkeep_gateway.languages import ENGLISH, LANGUAGES, PLACE, PROBLEM, SCRIPT, module

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
    found = {file.name: file.read_bytes() for file in folder.iterdir()}
    for language in LANGUAGES:
        if language != ENGLISH:
            texts = msgspec.json.encode(module(language, SCRIPT), order="sorted")
            found[f"texts-{language}.js"] = b"export default %b;\n" % texts
            found[f"problems-{language}.js"] = _problems(language)
    return dict(sorted(found.items()))


def _problems(language: str) -> bytes:
    """Return the API's messages as a JavaScript module: fixed ones, and patterns with values."""
    messages, patterns = {}, []
    for text, translation in module(language, PROBLEM).items():
        parts = PLACE.split(text)
        if len(parts) == 1:
            messages[text] = translation
        else:
            patterns.append((parts[::2], parts[1::2], translation))
    patterns.sort(key=lambda row: (-sum(map(len, row[0])), row))
    return b"export default %b;\nexport const patterns = %b;\n" % (
        msgspec.json.encode(messages, order="sorted"),
        msgspec.json.encode(patterns),
    )


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
