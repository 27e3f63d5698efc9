"""No command of a document installs a name from an index: pqkeep owns none there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = re.compile(r"/(\.[^/]+|node_modules|site|dist|screenshots)/")
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "deploy/**/*.md",
        "deploy/**/NOTES.txt",
        "clients/**/*.md",
        "*/README.md",
    )
    for path in ROOT.glob(pattern)
    if path.is_file() and not ELSEWHERE.search(f"/{path.relative_to(ROOT)}")
)
FENCE = re.compile(r"^ *```[a-z]*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
VALUE = {
    *("-r", "--requirement", "-c", "--constraint", "--find-links", "-f", "--target", "-t"),
    *(
        "--prefix",
        "--python",
        "--only-binary",
        "--values",
        "--set",
        "--namespace",
        "-n",
        "--version",
    ),
}
"""Options with a value in the next word."""


def _names(words: Sequence[str]) -> list[str]:
    """Return the words that are no options and no values of them."""
    names = []
    before = ""
    for word in words:
        if not word.startswith("-") and before not in VALUE:
            names.append(word)
        before = word
    return names


def _is_path(word: str) -> bool:
    return word.startswith(("./", "../", "/", "file:")) or bool(re.search(r"\.(whl|tgz)\b", word))


def _only_paths(words: Sequence[str]) -> bool:
    return all(_is_path(name) for name in _names(words))


def _no_package_of_ours(words: Sequence[str]) -> bool:
    return not any(name.startswith("pqkeep") for name in _names(words))


def _local_image(words: Sequence[str]) -> bool:
    return any(word.startswith("localhost/") for word in words)


def _chart_in_a_folder(words: Sequence[str]) -> bool:
    chart = _names(words)[1:2]
    return all(_is_path(name) or (ROOT / name).exists() for name in chart)


def _never(_: Sequence[str]) -> bool:
    return False


COMMANDS: Mapping[str, Callable[[Sequence[str]], bool]] = {
    r"(uv )?pip[0-9.]* install": _only_paths,
    r"pip[0-9.]* download": _only_paths,
    r"(pipx|uv tool) (install|run|inject)": _only_paths,
    r"uv add|uvx": _only_paths,
    r"(npm|pnpm|yarn|bun) (install|i|add|exec|create)": _only_paths,
    r"npx|bunx|deno (add|install)": _only_paths,
    r"go (get|install)": _only_paths,
    r"cargo (add|install)|gem install|brew install|conda install": _only_paths,
    r"(docker|podman|nerdctl|crictl) pull|(skopeo|crane) copy": _never,
    r"(docker|podman|nerdctl) run": _local_image,
    r"helm (install|upgrade|pull|template)": _chart_in_a_folder,
    r"helm repo add": _never,
    r"(apt|apt-get|dnf|yum|apk|zypper) (install|add)": _no_package_of_ours,
}
"""Commands that install, with the test of their words."""


def refused(text: str) -> Iterator[str]:
    """Yield the commands of a text that install a name from an index."""
    for line in text.replace("\\\n", " ").splitlines():
        for command in re.split(r"&&|;|\|\|", line):
            for pattern, permits in COMMANDS.items():
                found = re.search(rf"(?:^|[\s/])(?:{pattern})(?=\s|$)(.*)", command)
                if found is None:
                    continue
                try:
                    words = shlex.split(found.group(found.lastindex or 0), comments=True)
                except ValueError:
                    words = found.group(found.lastindex or 0).split()
                if not permits(words):
                    yield command.strip()


def test_no_document_installs_a_name_from_an_index() -> None:
    """Every command that installs names a file, a lock, or a package of the system."""
    found = {}
    for document in DOCUMENTS:
        text = document.read_text()
        if document.suffix == ".md":
            text = "\n".join([*FENCE.findall(text), *SPAN.findall(FENCE.sub("", text))])
        found[str(document.relative_to(ROOT))] = list(refused(text))
    assert len(found) > 50
    assert {name: commands for name, commands in found.items() if commands} == {}


@pytest.mark.parametrize(
    "command",
    [
        "pip install pqkeep",
        "pip install 'pqkeep[cli]'",
        ".venv/bin/pip install --quiet pqkeep-server==0.1.0",
        "python3 -m pip install --upgrade pqkeep",
        "uv pip install pqkeep",
        "pipx install pqkeep",
        "uvx pqkeep",
        "npm install pqkeep",
        "npm i -D @pqkeep/client",
        "npx pqkeep",
        "go get pqkeep.example/client",
        "go install github.com/pqkeep/cmd@latest",
        "docker pull pqkeep/gateway",
        "docker run -p 8443:8443 pqkeep/gateway:0.1.0",
        "helm install keep oci://charts.example/pqkeep",
        "helm repo add pqkeep https://charts.example",
        "apt install pqkeep-server",
        "cd dist && apt-get install --yes pqkeep",
    ],
)
def test_a_name_from_an_index_is_found(command: str) -> None:
    """A documented command that installs a name from a public index is found."""
    assert list(refused(command))


@pytest.mark.parametrize(
    "command",
    [
        "pip install './dist/pqkeep-0.1.0-py3-none-any.whl[cli]'",
        "pip install --require-hashes -r run.txt",
        "npm ci",
        "npm install ./pqkeep-0.1.0.tgz",
        "apt install ./pqkeep-server_0.1.0_amd64.deb",
        "apt install python3-venv",
        "helm install keep deploy/helm/pqkeep --values values.yaml",
        "docker run localhost/pqkeep-gateway:0.1.0",
    ],
)
def test_a_file_is_permitted(command: str) -> None:
    """Files, locks and packages of the system pass."""
    assert list(refused(command)) == []
