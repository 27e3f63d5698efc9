#!/bin/sh
# Installs pqkeep from this folder alone, without a network: ./install.sh [--client] [--prefix DIR]
# --client installs the command pqkeep only. --python names a Python 3.11 or 3.13.
set -eu
prefix=/opt/pqkeep
python=/usr/bin/python3
what=server
while [ $# -gt 0 ]; do
    case $1 in
        --client) what=client ;;
        --prefix) prefix=${2:?a directory must follow --prefix}; shift ;;
        --python) python=${2:?a program must follow --python}; shift ;;
        *) echo "usage: $0 [--client] [--prefix DIR] [--python PROGRAM]" >&2; exit 64 ;;
    esac
    shift
done
umask 022
cd "$(dirname "$0")"
sha256sum --check --quiet --strict SHA256SUMS
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
machine=$(uname -m)
[ "$machine" != aarch64 ] || machine=arm64
case $PWD in
    *-linux-"$machine") ;;
    *) echo "this bundle is not for $machine: take the one of that name" >&2; exit 65 ;;
esac
case $version in
    3.11 | 3.13) ;;
    *) echo "this bundle has wheels for Python 3.11 and 3.13, not for $version: name another with --python" >&2; exit 65 ;;
esac
if [ ! -e "$prefix/bin/pip" ]; then
    "$python" -m venv "$prefix" \
        || { echo "$python cannot make an environment: on Debian, install python3-venv" >&2; exit 69; }
fi
install() {
    env -i PATH="$PATH" HOME="$prefix" PIP_CONFIG_FILE=/dev/null "$prefix/bin/python" -I -m pip install \
        --quiet --disable-pip-version-check --no-cache-dir --no-index --find-links=wheels "$@"
}
if [ $what = client ]; then
    install --require-hashes --requirement=kubernetes.txt
    set -- wheels/pqkeep-[0-9]*.whl
    install --force-reinstall --no-deps "$1"
    install "$1[cli,local,audit,kubernetes]"
    "$prefix/bin/pqkeep" --version
else
    install --require-hashes --requirement=run.txt
    install --no-deps --force-reinstall wheels/pqkeep*.whl
    "$prefix/bin/pqkeepd" --version
fi
