"""Derives a root key in a PKCS#11 token, from a token key that never leaves it.

    root key = HMAC-SHA-256(the token's key, "pqkeep/root-key/v1")

Only the token stores a key. Each root key has its own token key, so that destroying the token key
destroys the root key. (PKCS#11 v2.40, CKM_SHA256_HMAC.)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pqkeep_keyservice.config import Pkcs11
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import ROOT_KEY_SIZE
from pqkeep_keyservice.root_key_sources.file import RootKeyUnavailableError, credential_file
from pqkeep_protocol.startup.secret_files import read_secret_text
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from pkcs11 import Session

LABEL = b"pqkeep/root-key/v1"
_BITS = 8 * ROOT_KEY_SIZE


def derive_root_key(source: Pkcs11) -> Secret:
    """Return the root key that a token derives.

    Raises RootKeyUnavailableError if the token is absent or fails. Raises ConfigError if the PIN is
    wrong, or if the token key is missing, extractable or shorter than 256 bits.
    """
    with _session(source) as session:
        from pkcs11 import Mechanism  # noqa: PLC0415 - an extra

        key = _require_key(session, source)
        return Secret(bytearray(key.sign(LABEL, mechanism=Mechanism.SHA256_HMAC)))


def create_token_key(source: Pkcs11) -> None:
    """Create the key in the token unless it exists. Raises the errors of ``derive_root_key``."""
    with _session(source, writes=True) as session:
        from pkcs11 import Attribute, KeyType, MechanismFlag  # noqa: PLC0415 - an extra

        if not _keys(session, source):
            session.generate_key(
                KeyType.GENERIC_SECRET,
                _BITS,
                label=source.key,
                store=True,
                capabilities=MechanismFlag.SIGN,
                template={
                    Attribute.PRIVATE: True,
                    Attribute.SENSITIVE: True,
                    Attribute.EXTRACTABLE: False,
                },
            )
        _require_key(session, source)


def destroy_token_key(source: Pkcs11) -> None:
    """Destroy the key in the token. Raises the errors of ``derive_root_key``."""
    with _session(source, writes=True) as session:
        _require_key(session, source).destroy()


def _require_key(session: "Session", source: Pkcs11) -> Any:
    from pkcs11 import Attribute  # noqa: PLC0415 - an extra

    keys, name = _keys(session, source), f"the key {source.key} in the token {source.token}"
    if not keys:
        raise ConfigError(f"{name} is missing: create it, or correct its label in the settings")
    if len(keys) > 1:
        raise ConfigError(f"{name} exists {len(keys)} times: keep one key with this label")
    (key,) = keys
    if key[Attribute.EXTRACTABLE] or not key[Attribute.SENSITIVE]:
        raise ConfigError(f"{name} can be read out: it must be sensitive and not extractable")
    if key.key_length < _BITS:
        raise ConfigError(f"{name} is shorter than {_BITS} bits: create a longer one")
    return key


def _keys(session: "Session", source: Pkcs11) -> list[Any]:
    from pkcs11 import Attribute, ObjectClass  # noqa: PLC0415 - an extra

    query = {Attribute.CLASS: ObjectClass.SECRET_KEY, Attribute.LABEL: source.key}
    return list(session.get_objects(query))


@contextmanager
def _session(source: Pkcs11, *, writes: bool = False) -> Iterator["Session"]:
    """Yield a session with the token, with the user logged in. Log out at the end.

    Each session initialises the library again, so that it finds a token inserted meanwhile.
    """
    try:
        import pkcs11  # noqa: PLC0415 - an extra
        from pkcs11 import exceptions  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError(
            'root keys in PKCS#11 tokens need the package "pqkeep-keyservice[pkcs11]": install it'
        ) from None
    pin = _pin(source)
    name = f"the PKCS#11 token {source.token}"
    try:
        library: Any = pkcs11.lib(str(source.library))
    except exceptions.PKCS11Error:
        raise ConfigError(f"cannot load the PKCS#11 library {source.library}") from None
    try:
        with library.get_token(token_label=source.token).open(rw=writes, user_pin=pin) as session:
            yield session
    except exceptions.NoSuchToken:
        raise RootKeyUnavailableError(f"{name} is not present") from None
    except exceptions.MultipleTokensReturned:
        raise ConfigError(
            f"several PKCS#11 tokens have the label {source.token}: give each its own label"
        ) from None
    except (
        exceptions.PinIncorrect,
        exceptions.PinInvalid,
        exceptions.PinLenRange,
        exceptions.PinExpired,
        exceptions.PinLocked,
    ) as error:
        # Not RootKeyUnavailableError: more tries could lock the token.
        raise ConfigError(f"{name} rejects the PIN: {type(error).__name__}") from None
    except exceptions.PKCS11Error as error:
        raise RootKeyUnavailableError(f"{name} fails: {type(error).__name__}") from None
    finally:
        library.finalize()


def _pin(source: Pkcs11) -> str:
    file = source.pin_file or credential_file(source.pin_credential or "")
    return read_secret_text(file, "PIN")
