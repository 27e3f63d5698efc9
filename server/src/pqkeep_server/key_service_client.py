"""The operator's requests to a running key service, over its socket."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pqkeep_protocol.administration import (
    AnnounceBackup,
    AnyAdministrationRequest,
    AnyMoveRequest,
    ListMoves,
    ListScheduledArchives,
    MoveRefusal,
    MoveRefused,
    NewestBackup,
    ReloadRootKeys,
    RootKeys,
    ScheduledArchive,
    ScheduledArchives,
)
from pqkeep_protocol.audit import ListWitnesses, WitnessState, WitnessStates
from pqkeep_protocol.codec import (
    TO_GATEWAY,
    Answer,
    Call,
    FrameDecoder,
    ProtocolError,
    Refusal,
    ToGateway,
    Unreadable,
    encode,
)
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import (
    Attribution,
    CancelArchive,
    CancelDestruction,
    Destructions,
    ListDestructions,
    ListRules,
    OverrideRule,
    RestoreKeyring,
    Result,
    Rules,
    ScheduledDestruction,
)

TIMEOUT_SECONDS = 30.0
LIST_SECONDS = 5.0
"""Seconds for a list of moves: it has few rows, and a person waits for it."""
R = TypeVar("R", bound=Result)
OperatorRequest = (
    AnyAdministrationRequest
    | ListDestructions
    | CancelDestruction
    | RestoreKeyring
    | CancelArchive
    | ListWitnesses
    | ListRules
    | OverrideRule
)


class KeyServiceError(Exception):
    """The key service refused or did not respond."""


class KeyServiceRefusalError(KeyServiceError):
    """The key service refused."""


class StandbyError(KeyServiceError):
    """The key service responds, and does not serve."""


_REFUSALS: Mapping[MoveRefusal, str] = {
    MoveRefusal.NO_TRANSFER_KEY: "the key service's settings have no transfer_key_file, or its log"
    " says why it cannot be read",
    MoveRefusal.SAME_SHARD: "the tenant is already in that shard",
    MoveRefusal.OTHER_TARGET: "the tenant is on its way to another shard: name that shard",
    MoveRefusal.BUSY: "the tenant's calls did not end in time: try again",
    MoveRefusal.INTERRUPTED: "the key service lost its database and has reconnected: try again",
    MoveRefusal.DAMAGED: "a key of the tenant is damaged; the key service's log says which",
    MoveRefusal.TOO_LARGE: "the tenant has more keys than a bundle can hold",
    MoveRefusal.NOT_MOVING: "the key service does not know this move",
    MoveRefusal.BUNDLE_INVALID: "the bundle is damaged, or the two key services have different"
    " transfer keys",
    MoveRefusal.BUNDLE_MISDIRECTED: "the bundle is for another shard, or of another tenant",
    MoveRefusal.BUNDLE_OUTDATED: "the tenant has been moved since the bundle was made, or the shard has"
    " renounced it",
    MoveRefusal.TENANT_IS_HERE: "the target shard already has keys of the tenant",
    MoveRefusal.RECEIPT_INVALID: "the receipt is not from the shard that has the tenant",
    MoveRefusal.HAS_ARRIVED: "the tenant has arrived at the other shard",
}


class MoveRefusedError(KeyServiceError):
    """The key service refused a step of a tenant's move. Nothing was changed."""

    def __init__(self, reason: MoveRefusal) -> None:
        super().__init__(_REFUSALS[reason])
        self.reason = reason


def reload_root_keys(path: Path) -> RootKeys:
    """Make the key service reload the root keys in its settings.

    Raises KeyServiceError.
    """
    request = ReloadRootKeys(tenant=INSTALLATION)
    why_not = "the key service refused the root keys: see its log"
    return _ask(path, "root-key", request, RootKeys, why_not)


def announce_backup(path: Path, backup: AnnounceBackup) -> NewestBackup:
    """Tell the key service about a complete backup. Return the newest backup that it knows.

    Raises KeyServiceError.
    """
    why_not = "the key service does not recognize the backup as one of its own data"
    return _ask(path, "backup", backup, NewestBackup, why_not)


def list_witnesses(path: Path) -> tuple[WitnessState, ...]:
    """Return the states of the audit log's witnesses. Raises KeyServiceError."""
    request = ListWitnesses(tenant=INSTALLATION)
    return _ask(path, "doctor", request, WitnessStates, "the witnesses cannot be read").witnesses


def require_response(path: Path) -> None:
    """Raise KeyServiceError unless the key service responds, whatever it says."""
    with suppress(KeyServiceRefusalError, StandbyError):
        _ask(path, "doctor", ListMoves(tenant=INSTALLATION), Result, "")


def take_step(path: Path, request: AnyMoveRequest, kind: type[R]) -> R:
    """Make the key service take a step of a move. Raises MoveRefusedError and KeyServiceError."""
    why_not = "the key service is not available"
    result = _ask(path, "shard-move", request, Result, why_not)
    if isinstance(result, MoveRefused):
        raise MoveRefusedError(result.reason)
    if not isinstance(result, kind):
        raise KeyServiceError("the key service sent an unexpected response")
    return result


def list_destructions(path: Path) -> Iterator[ScheduledDestruction | ScheduledArchive]:
    """Yield the tenants, then the keyrings and key versions, that are to be destroyed.

    Raises KeyServiceError.
    """
    why_not = "the key service is not available"
    for keyrings in (False, True):
        asked = ListDestructions(tenant=INSTALLATION, keyrings=keyrings)
        while True:
            found = _ask(path, _DESTRUCTIONS, asked, Destructions, why_not)
            yield from found.destructions
            if not found.has_more or not found.destructions:
                break
            last = found.destructions[-1]
            asked = ListDestructions(
                tenant=INSTALLATION,
                keyrings=keyrings,
                after=last.tenant,
                after_keyring=last.keyring,
            )
    keys = ListScheduledArchives(tenant=INSTALLATION)
    while True:
        listed = _ask(path, _DESTRUCTIONS, keys, ScheduledArchives, why_not)
        yield from listed.archives
        if not listed.has_more:
            break
        keys = ListScheduledArchives(tenant=INSTALLATION, after=listed.archives[-1])


def cancel_destruction(
    path: Path, request: CancelDestruction | RestoreKeyring | CancelArchive
) -> None:
    """Have the key service keep a tenant's private keys, a keyring's, or one.

    Raises KeyServiceError.
    """
    why_not = "it was not cancelled: the destruction has begun, or there is no such key"
    _ask(path, _DESTRUCTIONS, request, Result, why_not)


def ask_rules(path: Path, request: ListRules | OverrideRule) -> Rules:
    """Return a tenant's rules, after the change that was asked for. Raises KeyServiceError."""
    why_not = (
        "the rules were not changed: the tenant is in another shard, has no such rule, "
        "already has the most rules, or has damaged rules. pqkeepd rules set "
        "--discard-damaged replaces damaged rules"
    )
    return _ask(path, "rules", request, Rules, why_not)


_DESTRUCTIONS = "destructions"
"""The id of the requests, which the audit log has."""


def seconds_for(request: OperatorRequest) -> float:
    """Return the seconds to wait for a response."""
    return LIST_SECONDS if isinstance(request, ListMoves) else TIMEOUT_SECONDS


def _ask(path: Path, request_id: str, request: OperatorRequest, kind: type[R], why_not: str) -> R:
    attribution = Attribution(request_id, "operator", "", "")
    seconds = seconds_for(request)
    call = Call(1, int(seconds * 1000), attribution, request)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(str(path))
            connection.sendall(encode(call))
            response = _receive(connection)
    except (FileNotFoundError, ConnectionRefusedError):
        raise KeyServiceError(
            f"the key service does not respond: nothing listens on {path}. Start it"
        ) from None
    except TimeoutError:
        raise KeyServiceError(
            f"the key service at {path} does not respond within {seconds:.0f} s: its process is"
            " stopped, or waits for its database; see its log and its state (ps)"
        ) from None
    except (OSError, ProtocolError) as error:
        raise KeyServiceError(f"the key service does not respond: {error}") from None
    match response:
        case Answer(result=result) if isinstance(result, kind):
            return result
        case Refusal(kind=ErrorKind.STANDBY):
            raise StandbyError(
                "this key service is not active: it is a standby, or has lost its database. Use the"
                " active one, or try again"
            )
        case Refusal():
            raise KeyServiceRefusalError(why_not)
        case _:
            raise KeyServiceError("the key service sent an unexpected response")


def _receive(connection: socket.socket) -> ToGateway | Unreadable:
    decoder = FrameDecoder(TO_GATEWAY)
    while size := connection.recv_into(decoder.space()):
        for frame in decoder.filled(size):
            return frame
    raise OSError("the connection was closed")
