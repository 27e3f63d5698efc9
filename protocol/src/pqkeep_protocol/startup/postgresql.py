"""Problems with PostgreSQL servers in words, each with the next step.

Errors are recognized by SQLSTATE and by the names of the driver's classes: this package does not
import the driver.
"""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from pqkeep_protocol.startup.settings import ConfigError

OLDEST_VERSION = 15
PROVISIONING = "deploy/postgresql.sql"
"""The script that creates roles and databases."""

_ADVICE: Mapping[str, str] = {
    "28P01": "the server rejects the password of role {role}: put the right one into the"
    " database_password_file, in a line {server}:{database}:{role}:PASSWORD, or set it by ALTER"
    " ROLE",
    "28000": "the server rejects role {role}: create the role with " + PROVISIONING + ", and add a"
    " line for it and this host to pg_hba.conf; if that line demands TLS, add ?sslmode=verify-full"
    " to the address",
    "3D000": "there is no database {database}: create it with " + PROVISIONING + ", or by CREATE"
    " DATABASE {database} OWNER {role}",
    "42501": "role {role} lacks a right: it must own the database {database} and its tables"
    " (ALTER DATABASE {database} OWNER TO {role})",
    "53300": "the server has no free connection: raise its max_connections or the CONNECTION LIMIT"
    " of role {role}, or run fewer gateways",
    "25006": "the server is read-only, like a standby: put the primary into the address, or promote"
    " the server",
    "57P03": "the server is starting, stopping or recovering: wait, and check its log",
    "55000": "the database {database} accepts no connections: run ALTER DATABASE {database}"
    " ALLOW_CONNECTIONS true",
}
"""The advice for each SQLSTATE."""
_PERMANENT = frozenset({"28P01", "28000", "3D000", "42501"})
"""States in which a retry fails too."""
_READ_ONLY = "TargetServerAttributeNotMatched"
_MISCONFIGURED = "ClientConfigurationError"
"""Names of errors of asyncpg."""


def require_version(version: Sequence[int | str] | None, location: str) -> None:
    """Raise ConfigError if a server's version is not supported."""
    if version is not None and int(version[0]) < OLDEST_VERSION:
        text = ".".join(map(str, version))
        raise ConfigError(
            f"the database {location} is on PostgreSQL {text}, and pqkeep needs {OLDEST_VERSION} or"
            " later: upgrade the server (pg_upgrade), or use another one"
        )


OWN_CODE = """\
SELECT 'the ' || kind || ' ' || name FROM (
  SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view'
      WHEN 'f' THEN 'foreign table' ELSE 'partitioned table' END AS kind,
    c.relname AS name, c.oid AS object, 'pg_class'::regclass AS catalog, c.relnamespace AS schema
  FROM pg_class c WHERE c.relkind IN ('v', 'm', 'f', 'p')
  UNION ALL
  SELECT 'trigger', t.tgname, t.oid, 'pg_trigger'::regclass, c.relnamespace
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE NOT t.tgisinternal
  UNION ALL
  SELECT 'rule', r.rulename, r.oid, 'pg_rewrite'::regclass, c.relnamespace
  FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class WHERE r.rulename <> '_RETURN'
  UNION ALL
  SELECT 'inherited table', c.relname, c.oid, 'pg_class'::regclass, c.relnamespace
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent WHERE c.relkind = 'r'
) found
WHERE EXISTS (SELECT FROM pg_namespace n
    WHERE n.oid = schema AND n.nspname = ANY (current_schemas(false)))
  AND NOT EXISTS (SELECT FROM pg_depend d
    WHERE d.classid = catalog AND d.objid = object AND d.deptype = 'e')
LIMIT 1"""
"""Counts objects that could replace a table or run with its statements. pqkeep makes none. Objects
of extensions are left out."""


def require_no_code(found: str | None, location: str) -> None:
    """Raise ConfigError where OWN_CODE has found something."""
    if found is not None:
        raise ConfigError(
            f"the database {location} has {found}, and pqkeep never makes one: find out who made it,"
            " and remove it"
        )


def is_permanent(error: BaseException) -> bool:
    """Return True if another attempt to connect would fail too."""
    return any(
        getattr(cause, "sqlstate", None) in _PERMANENT
        or type(cause).__name__ == _MISCONFIGURED
        or isinstance(cause, ssl.SSLCertVerificationError)
        or _is_tls_refused(cause)
        for cause in causes(error)
    )


def problem_with(error: BaseException, location: str) -> str:
    """Return the problem with a database, and the next step."""
    address = urlsplit(location)
    words = {
        "role": unquote(address.username or "") or "of this process's user",
        "database": unquote(address.path.lstrip("/")) or "of the role's name",
        "server": address.netloc.rpartition("@")[2] or "its socket",
    }
    return f"the database {location}: {_advice(error, words)}"


def _advice(error: BaseException, words: Mapping[str, str]) -> str:
    last = error
    for cause in causes(error):
        last = cause
        if (advice := _ADVICE.get(getattr(cause, "sqlstate", None) or "")) is not None:
            return f"{advice.format_map(words)} ({cause})"
        if type(cause).__name__ == _READ_ONLY:
            return _ADVICE["25006"].format_map(words)
    if isinstance(last, OSError):
        return _connection_problem(last, words["server"])
    return str(last) or type(last).__name__


def _connection_problem(error: OSError, server: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}): give the CA by"
            " sslrootcert=FILE in the address, and use a host name from the certificate"
        )
    if _is_tls_refused(error):
        return (
            "the server refuses TLS, which the address demands: turn it on there (ssl = on, with a"
            " certificate), or remove sslmode from the address if the network is trusted"
        )
    if isinstance(error, TimeoutError):
        return f"no response from {server} in time: check the network and its firewall"
    return (
        f"nothing listens at {server} ({error.strerror or error}): start the server, or correct the"
        " host and port in the address"
    )


def _is_tls_refused(error: BaseException) -> bool:
    # asyncpg raises a plain ConnectionError; SSLError is a different class.
    return type(error) is ConnectionError and "SSL" in str(error)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes. SQLAlchemy's errors wrap the driver's."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        wrapped = getattr(cause, "orig", None)
        cause = wrapped if isinstance(wrapped, BaseException) else cause.__cause__
