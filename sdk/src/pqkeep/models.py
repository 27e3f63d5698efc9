"""What the service returns. A repr shows no secrets and no long byte strings.

Times are aware, in UTC. Identifiers are UUIDs as text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypedDict, TypeVar

from pqkeep.errors import MalformedResponseError

R_co = TypeVar("R_co", covariant=True)
INFO_LINES = 5
"""The info of an import key: a label, id, algorithm, keyring, and expiry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ciphertext:
    """Encrypted data. Keep all three fields: decryption needs them."""

    ciphertext: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Encrypted data that identifies its key. Keep the text: decryption needs nothing else."""

    envelope: str = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSecret:
    """A new shared secret (32 bytes), and the KEM ciphertext for the owner of a public key."""

    kem_ciphertext: bytes = field(repr=False)
    shared_secret: bytes = field(repr=False)
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Encapsulation:
    """A new shared secret (32 bytes), and the KEM ciphertext for the key's owner."""

    kem_ciphertext: bytes = field(repr=False)
    shared_secret: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedKey:
    """A wrapped symmetric key. Keep the first three fields: unwrapping needs them."""

    wrapped_key: bytes = field(repr=False)
    key_version: int
    algorithm: str
    wrapping_method: str
    """``KEM-DEM``, or ``XAES-256-GCM`` under a symmetric key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKey:
    """A new data key: encrypted in one of three forms, and in plaintext if requested."""

    plaintext: bytes | None = field(repr=False)
    wrapped_key: bytes | None = field(repr=False)
    """The form that ``kem.unwrap`` decrypts."""
    ciphertext: bytes | None = field(repr=False)
    """The form that ``kem.decrypt`` decrypts."""
    envelope: str | None = field(repr=False)
    """The form that ``kem.decrypt_envelope`` decrypts."""
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mac:
    """A MAC. Keep all three fields: verification needs them."""

    mac: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReEncrypted:
    """Re-encrypted data in one of three forms, and its new key."""

    ciphertext: bytes | None = field(repr=False)
    envelope: str | None = field(repr=False)
    wrapped_key: bytes | None = field(repr=False)
    key_version: int
    algorithm: str
    keyring: str
    moved: bool
    """False if the data was already there: it is returned unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A signature. Keep all three fields: verification needs them."""

    signature: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Jws:
    """A JSON Web Signature in compact form. It names its key by the thumbprint."""

    jws: str
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HashSignature:
    """A signature over a hash. Keep all four fields: verification needs them."""

    signature: bytes = field(repr=False)
    key_version: int
    algorithm: str
    hash_algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One version of a key: its public key and its state."""

    key_version: int
    algorithm: str
    status: str
    """``active``, ``retired``, ``disabled`` or ``archived``."""
    public_key: bytes = field(repr=False)
    """The public key. Empty for a symmetric key."""
    created_at: datetime
    archive_at: datetime | None = None
    """The time at which the private key is destroyed, if scheduled. The key cannot be used until
    then.
    """
    disabled_until: datetime | None = None
    """The time at which a disabled key is enabled again. None: only by a request."""
    imported: bool = False
    """True if the private key was made elsewhere, where it may still be known."""
    keyring: str | None = None
    """The keyring. None if the request named no keyring and did not ask for all keyrings."""
    fingerprint: str | None = None
    """The check value of a symmetric key, in hexadecimal. None for other keys."""
    legacy: bool = False
    """True if the key only reads: for re-encryption, or to verify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportKey:
    """A public key that wraps one private key for one import; see ``pqkeep.key_import``."""

    import_key_id: str
    public_key: bytes = field(repr=False)
    """An ML-KEM-1024 public key."""
    suite: str
    info: bytes = field(repr=False)
    algorithm: str
    """The algorithm of the private key."""
    expires_at: datetime

    @property
    def keyring(self) -> str:
        """The keyring in ``info``. Raises MalformedResponseError."""
        lines = self.info.split(b"\n")
        if len(lines) != INFO_LINES or not lines[3].isascii():
            raise MalformedResponseError("the import key's info names no keyring")
        return lines[3].decode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """A keyring: a named set of keys, one for each algorithm."""

    name: str
    description: str
    labels: dict[str, str]
    purposes: tuple[str, ...]
    """The allowed purposes of its keys."""
    rotation_days: int | None
    """The age in days at which an active key is rotated automatically. None means never."""
    archive_after_days: int | None
    """The days after retirement at which a version is archived automatically. None means never."""
    created_at: datetime | None
    """The creation time. None for ``default``."""
    minimum_decryption_version: int = 0
    """The lowest key version that decrypts, unwraps, decapsulates and verifies. 0 allows every
    version."""
    minimum_encryption_version: int = 0
    """The lowest key version that encrypts, wraps, encapsulates, signs and computes MACs. 0 allows
    every version."""
    first_version: int = 1
    """The lowest version number of its keys."""
    derived: bool = False
    """Whether each call that encrypts or decrypts needs a context."""
    deletion_allowed: bool = False
    """Whether API keys with a scope that names ``delete-keyring`` may delete it."""
    retired_public_keys_allowed: bool = False
    """Whether data may still be encrypted to a retired version, by its public key."""
    transit_type: str | None = None
    """The key type that clients of Vault Transit see. None: no API key without limits can use the
    keyring."""
    archive_at: datetime | None = None
    """The time at which the keys of a deleted keyring are destroyed. None if it is not deleted."""
    last_used_at: datetime | None = None
    """The last use of its keys, in lists. None: never, or not from a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleException:
    """An API key that a rule still lets through with a warning, until a time."""

    api_key: int
    """The API key's version."""
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmRule:
    """A rule: it ends algorithms for new data and new keys. Reading goes on."""

    name: str
    algorithms: tuple[str, ...]
    """The algorithms that the rule ends."""
    keyrings: tuple[str, ...]
    """Names of keyrings, and prefixes of names followed by ``*``."""
    uses: tuple[str, ...]
    """The uses that the rule ends."""
    successor: str | None
    """The algorithm to use instead, if there is one."""
    warn_from: datetime | None
    """The time from which responses warn. None means never."""
    deny_from: datetime | None
    """The time from which requests are denied. None means never."""
    exceptions: tuple[RuleException, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmRules:
    """All rules of a tenant, by name."""

    rules: tuple[AlgorithmRule, ...]
    revision: int
    """Counts the changes. The record of a change has it as ``keyring_revision``."""
    sha256: str
    """SHA-256 of the rules. The record of the newest change has it as ``public_key_sha256``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewedUse:
    """The uses by one principal that a rule would have refused."""

    rule: str
    principal: str
    """The principal, as in the audit log."""
    keyring: str | None
    """None for public keys that are not the tenant's own."""
    algorithm: str
    operation: str
    """As in the audit log; ``re-encrypt-target`` for the target of a re-encryption."""
    uses: int
    first_used_at: datetime
    last_used_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePreview:
    """What a rule would have refused, most uses first."""

    since: datetime
    """The beginning of the compared days."""
    refused: tuple[PreviewedUse, ...]
    incomplete: bool
    """True if there is more than the service returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRule:
    """A rule of a profile, which has no dates yet."""

    name: str
    algorithms: tuple[str, ...]
    """The algorithms that the rule ends."""
    uses: tuple[str, ...]
    """The uses that the rule ends."""
    successor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleProfile:
    """A set of rules that can be put by name."""

    name: str
    description: str
    rules: tuple[ProfileRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A public key in one format."""

    format: str
    """``raw``, ``pem``, ``der`` or ``jwk``."""
    public_key: bytes | str | dict[str, str] = field(repr=False)
    """Bytes for raw and der, text for pem, the members of the object for jwk."""
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A new active key, and the version that it replaced."""

    public_key: bytes = field(repr=False)
    key_version: int
    algorithm: str
    old_key_version: int
    fingerprint: str | None = None
    """The check value of a symmetric key, in hexadecimal. None for other keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUsage:
    """The usage of one key version."""

    key_version: int
    algorithm: str
    uses: int
    """The number of successful operations with it."""
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageBucket:
    """The operations of one hour, or of one day (UTC)."""

    start: datetime
    operations: dict[str, int]
    """The number of successful operations, by name. Names without any are missing."""
    succeeded: int
    """The sum of all operations."""
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyApiKey:
    """An API key with requests in this minute or the one before."""

    version: int
    name: str | None
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The operations of a period, and the quota."""

    period: str
    """``24h`` or ``30d``."""
    buckets: tuple[UsageBucket, ...]
    """The buckets, from the oldest to the current one."""
    total: int
    """Successful operations in all buckets."""
    operations_used: int | None
    """The number of operations of this month. None without a quota."""
    operations_per_month: int | None
    """The quota of a month. None: any number."""
    requests_per_minute: int | None
    """The rate limit. None for the usage of all tenants."""
    busiest_api_keys: tuple[BusyApiKey, ...] = ()
    """The API keys with the most requests in the last minutes, the busiest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One organisation. Only the operator gets the last four fields, and not from ``create``."""

    id: str
    name: str
    plan: str
    status: str
    """``active`` or ``suspended``. The operator also sees ``deleting`` and ``deleted``."""
    created_at: datetime
    updated_at: datetime
    tier: str | None
    subscription: str | None
    """``active`` or ``ended``."""
    requests_per_minute: int | None
    """The tenant's own rate limit. None if the plan decides."""
    deletion_at: datetime | None
    """The time at which the tenant is or was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A person of a tenant."""

    id: str
    email: str
    role: str
    """``owner``, ``admin``, ``developer`` or ``viewer``."""
    status: str
    """``active``; or ``must_enroll``, if a required second factor is missing."""
    has_mfa: bool
    last_sign_in_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """An invitation that was not accepted yet."""

    id: str
    email: str
    role: str
    expires_at: datetime
    token: str | None = field(default=None, repr=False)
    """It accepts the invitation, once. Only ``invite`` returns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """One result of a search."""

    kind: str
    """``tenant`` or ``record``."""
    id: str
    """A tenant's id, or a record's position in the log."""
    name: str
    """A tenant's name, or a record's position and operation."""
    detail: str | None
    """A tenant's status, or a record's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResults:
    """The results of a search."""

    results: tuple[SearchResult, ...]
    unavailable: tuple[str, ...]
    """The kinds that could not be searched, because a part is unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The permissions of an API key. A field with the value None does not restrict the API key."""

    operations: tuple[str, ...] | None = None
    """Names of operations and groups, such as ``use``. docs/api.md lists them."""
    keyrings: tuple[str, ...] | None = None
    """Names of keyrings, or beginnings of names followed by ``*``: ``payments.*``."""
    algorithms: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadIssuer:
    """An issuer of tokens that a tenant's workloads exchange for API keys."""

    name: str
    url: str
    """The claim iss of its tokens."""
    audience: str
    """A value that the claim aud must contain."""
    algorithms: tuple[str, ...]
    jwks: str | None
    """Its public keys as a JWK Set. None: they are fetched."""
    changed_at: datetime
    changed_by: str
    """The principal that changed it last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRole:
    """The permissions of workloads with tokens that meet conditions."""

    name: str
    issuer: str
    """The issuer's name."""
    claims: Mapping[str, tuple[str, ...]]
    """The conditions: claims with their accepted values."""
    scopes: tuple[Scope, ...]
    lifetime_seconds: int
    valid_keys: int
    """The number of valid API keys of the role."""
    changed_at: datetime
    changed_by: str
    """The principal that changed it last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """The properties of an API key, without the key itself."""

    key_last4: str
    version: int
    status: str
    """``active`` or ``revoked``."""
    created_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None = None
    """This and the following fields need ``details``. This field is up to 30 seconds late."""
    last_used_from: str | None = None
    """The source address of the last use."""
    overlap_ends_at: datetime | None = None
    """The end of the overlap of a rotated key, which is accepted until then."""
    name: str | None = None
    scopes: tuple[Scope, ...] | None = None
    """The scopes. None allows everything that an API key may do."""
    expires_at: datetime | None = None
    allowed_addresses: tuple[str, ...] | None = None
    """The networks from which it is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnApiKey:
    """The API key that a client uses."""

    tenant_id: str
    version: int
    name: str | None
    scopes: tuple[Scope, ...] | None
    """The scopes. None allows everything that an API key may do."""
    expires_at: datetime | None
    allowed_addresses: tuple[str, ...] | None
    """The networks from which it is accepted. None allows all networks."""
    rotated: bool
    """True if a new API key replaced it, and its overlap has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewApiKey:
    """A new API key, which is shown only once. The last four fields repeat the request."""

    api_key: str = field(repr=False)
    key_last4: str
    version: int
    status: str
    created_at: datetime
    name: str | None = None
    scopes: tuple[Scope, ...] | None = None
    expires_at: datetime | None = None
    allowed_addresses: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyRotation:
    """A new API key, and the version that it replaces."""

    new_key: NewApiKey
    revoked_version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSource:
    """Key versions to move away from."""

    algorithm: str
    keyring: str = "default"
    key_versions: tuple[int, ...] | None = None
    """None: all; of the target's own key, all but the active version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignTarget:
    """The key to move to. Its active version is used."""

    algorithm: str
    keyring: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A plan to move data from old keys to a new one."""

    name: str
    description: str
    sources: tuple[CampaignSource, ...]
    target: CampaignTarget
    quiet_days: int
    state: str
    """``open`` or ``closed``."""
    created_at: datetime
    created_by: str
    """The principal that created it."""
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedVersion:
    """The ciphertexts of a key version that a scan found."""

    algorithm: str
    key_version: int
    count: int
    keyring: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignScan:
    """A principal's statement about the ciphertexts in a place."""

    place: str
    sha256: str
    """The SHA-256 of the scan's file, in hexadecimal."""
    scanned_at: datetime
    recorded_at: datetime
    principal: str
    left: int
    """Ciphertexts of source versions."""
    other: int
    """Ciphertexts of other key versions."""
    unreadable: int
    """Entries without a known key version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedVersions:
    """A campaign's re-encryptions from one key version to another."""

    keyring: str
    algorithm: str
    key_version: int
    target_keyring: str
    target_algorithm: str
    target_key_version: int
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedUses:
    """A principal's refused uses of a disabled key version."""

    principal: str
    keyring: str
    algorithm: str
    key_version: int | None
    """The requested version. None: the caller asked for the active version."""
    count: int
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignProgress:
    """What is known of a campaign. No percentage is shown, because the total is unknown."""

    campaign: Campaign
    moved: int
    """Re-encryptions, counted in the audit log."""
    moved_by_version: tuple[MovedVersions, ...]
    left: int | None
    """Ciphertexts of the sources, as the newest scans state. None: there is no scan."""
    unreadable: int
    """Entries without a known key version, as these scans state."""
    scans: tuple[CampaignScan, ...]
    is_quiet: bool
    """Whether the service saw no use of a source for the campaign's quiet days."""
    last_used_at: datetime | None
    canary: str
    """``none``, ``running`` or ``ended``."""
    canary_until: datetime | None
    refused: tuple[RefusedUses, ...]
    """The refused uses in the canary's time, the newest first."""
    is_complete: bool
    """Whether ``refused`` has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """An audit record about one operation, action or refusal."""

    format: int
    """The format of the record: see docs/audit.md."""
    id: int
    """The position among all records of the log, from 1."""
    number: int
    """The position among the tenant's records, from 1."""
    tenant_id: str
    operation: str
    outcome: str
    """``success``, or the error code of the refusal."""
    algorithm: str | None
    key_version: int | None
    principal: str
    policy: str
    request_id: str
    source_address: str
    recorded_at: datetime
    event_id: str | None
    happened_at: datetime | None
    nonce: str
    public_key_sha256: str | None
    """The fingerprint of the generated key or of the caller's key, in hexadecimal."""
    keyring_revision: int | None
    """The number of changes to the key or keyring, including this one."""
    keyring: str | None = None
    """The keyring's name. None for records without a keyring."""
    target: str | None = None
    """For a re-encryption: keyring, algorithm and version of the target key."""
    rule: str | None = None
    """The rule with a date that warned of the operation or refused it."""
    campaign: str | None = None
    """The campaign that a re-encryption belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosignature:
    """A witness's statement that it has seen the log grow to a checkpoint."""

    witness: str
    """The name of the witness's key."""
    origin: str
    """The name of the log that the witness cosigned."""
    at: datetime
    signature: bytes = field(repr=False)
    """Key id (4 bytes), time (8 bytes) and signature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """A witness of the log, and the last checkpoint that it cosigned."""

    name: str
    origin: str
    """The name of the log that the witness knows."""
    size: int | None
    """The records of that checkpoint. None before the first."""
    at: datetime | None
    problem: str | None
    """Why it does not cosign now: unreachable, bad-response, unknown-log, unknown-key or conflict.

    With ``conflict`` it has cosigned another history of the log: records were lost or replaced.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The signed state of the audit log at one time."""

    log_id: str
    size: int
    """The number of records in the signed log."""
    root: bytes = field(repr=False)
    at: datetime
    algorithm: str
    key_version: int
    signature: bytes = field(repr=False)
    cosignatures: tuple[Cosignature, ...] = ()
    """The cosignatures of witnesses."""


class RecordFilters(TypedDict, total=False):
    """The filters of audit records. A record must match all that are given."""

    since: datetime | None
    """A time with an offset from UTC."""
    until: datetime | None
    """The exclusive end: a time with an offset from UTC."""
    operation: str | None
    """An operation, or several with commas between them."""
    keyring: str | None
    algorithm: str | None
    key_version: int | None
    outcome: str | None
    """``refused`` selects every refusal."""
    principal: str | None
    """A principal of records, a member's e-mail address, or the name of an API key or operator."""
    source_address: str | None
    """An address, or a network."""
    request_id: str | None
    rule: str | None
    campaign: str | None
    tenant: str | None
    """An id or a name. Operator only."""
    page_views: bool
    """False leaves out the portal's successful reads of lists of keys and keyrings."""
    log: str | None
    shard: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCount:
    """The number of audit records with one value."""

    value: str
    """As in records. An hour or a day is the time of its beginning."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """Audit records, counted by a value."""

    counts: tuple[RecordCount, ...]
    """The most frequent first, or the newest hour or day."""
    total: int
    """The counted records."""
    values: int
    """The number of values, including values that are not listed."""
    next: int | str | None
    """The ``before`` that counts older records. None: all were counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLog:
    """The checkpoint of the audit log up to which uses are counted."""

    log_id: str
    size: int
    """The number of records that are counted."""
    root: bytes = field(repr=False)
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUses:
    """The uses of a key by one operation, and by one principal if the request named one."""

    operation: str
    """An operation; ``re-encrypt-target`` for re-encryptions to the key."""
    uses: int
    first_used_at: datetime
    last_used_at: datetime
    principal: str | None = None
    """The principal as in audit records; ``other`` stands for principals beyond 10,000 in a
    month."""
    algorithm: str | None = None
    """The algorithm of uses that belong to no key of the tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAssessment:
    """What a rule with a date says of a key version."""

    rule: str
    state: str
    """``announced``, ``warns`` or ``denies``."""
    uses: tuple[str, ...]
    warn_from: datetime | None
    deny_from: datetime | None
    successor: str | None
    confidential_longer: bool
    """Whether the keyring's data stay confidential after ``deny_from``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryKey:
    """A key version in the inventory, with its uses up to a checkpoint."""

    keyring: str
    algorithm: str
    standard: str
    key_version: int
    status: str
    created_at: datetime
    age_days: int
    retired_at: datetime | None
    retired_days: int | None
    archive_at: datetime | None
    imported: bool
    private_key: str
    """``present`` or ``destroyed``."""
    fingerprint: str
    keyring_deleted: bool
    owner: str | None
    data_class: str | None
    confidential_until: str | None
    """The keyring's labels with these names."""
    uses: int
    first_used_at: datetime | None
    last_used_at: datetime | None
    operations: tuple[KeyUses, ...]
    principals: tuple[KeyUses, ...]
    """The uses by principal, at most 100."""
    more_principals: bool
    """Whether there are more: see ``uses``."""
    rules: tuple[RuleAssessment, ...] | None
    """The rules. None: unknown, because the tenant's rules are damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryPage:
    """A page of the inventory. Its counts are exact up to the checkpoint ``as_of``."""

    as_of: CountedLog
    since: datetime | None
    keys: tuple[InventoryKey, ...]
    total: int
    unattributed: tuple[KeyUses, ...]
    """Uses of public keys that are not the tenant's own."""
    external: tuple["ExternalSource", ...]
    """The lists of keys elsewhere."""
    merged_principals: bool
    """Whether uses on the page have the principal ``other``."""
    not_seen: tuple[str, ...]
    """What the service cannot see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InclusionProof:
    """A record, its position in the log's tree, and the hashes that lead to the signed root."""

    record: AuditRecord
    leaf_index: int
    size: int
    path: tuple[bytes, ...] = field(repr=False)
    """Hashes of 32 bytes, from the leaf's sibling up."""
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyProof:
    """Proof that the log of one size grew into the log of another size."""

    first: int
    second: int
    path: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditKey:
    """A key that verifies checkpoints."""

    algorithm: str
    key_version: int
    public_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditKeys:
    """All keys that ever signed checkpoints of a log."""

    log_id: str
    keys: tuple[AuditKey, ...]
    note_key: str | None
    """The keys that verify signed notes. None before the first checkpoint."""
    logs: tuple[str, ...] = ()
    """The ids of all logs with the tenant's records, from the first. Empty if there is only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The service is ready for requests."""

    status: str
    """``ok``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationPart:
    """A part of the installation. If it is not ready, it has a reason."""

    name: str
    is_ready: bool
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cbom:
    """A cryptographic bill of materials: the document, or a JWS that contains it."""

    spec_version: str
    document: Mapping[str, object] | None
    """The document. None if it is in ``jws``."""
    jws: str | None
    next: str | None
    """The position of the next document; None at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalSource:
    """A list of keys outside pqkeep, from the last document of its name."""

    source: str
    document_sha256: str
    """SHA-256 of the imported document, in hexadecimal."""
    list_sha256: str
    """SHA-256 of the list of keys that the service keeps, in hexadecimal."""
    imported_at: datetime
    imported_by: str
    total: int
    """The number of keys."""
    moved: int
    """Keys with nothing left to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The state of an installation."""

    version: str
    parts: tuple[InstallationPart, ...]
    facts: Mapping[str, Mapping[str, object] | None]
    """``log``, ``root_key``, ``mail``, ``backups`` and ``tenants``, as in the API."""
    certificates: Mapping[str, datetime]
    """The expiry of each certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A named operator of the installation."""

    name: str
    created_at: datetime
    last_used_at: datetime | None
    last_used_from: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[R_co]):
    """A part of a list. ``next`` is the position for the next part, or None at the end."""

    items: tuple[R_co, ...]
    next: int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A receiver of the tenant's notices. Its secret was shown once, when it was created."""

    id: str
    name: str
    url: str
    """The receiver's address, without path and query, which may be secret."""
    kinds: tuple[str, ...]
    """The kinds of notices that it gets. Empty: all."""
    state: str
    """active or disabled."""
    created_at: datetime
    created_by: str
    """The principal that created it."""
    last_success_at: datetime | None
    failing_since: datetime | None
    """The first failed attempt since the last success."""
    previous_secret_until: datetime | None
    """Until then messages have a second signature, with the previous secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A problem that needs attention, and the portal's page on which it can be solved."""

    id: str
    kind: str
    severity: str
    """info, warning or danger."""
    text: str
    """The notice as a sentence."""
    action: str
    """The text of the link: what to do about the cause."""
    path: str
    """The page for that, beneath /portal."""
    count: int
    """The number of subjects."""
    names: tuple[str, ...]
    """The first subjects."""
    at: datetime | None
    """The next destruction, expiry or denial; of an event, its time."""
    opened_at: datetime
    raised_at: datetime
    """The time at which its cause last grew."""
    closed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery:
    """One message to a webhook, and its last attempt."""

    id: str
    """The header webhook-id, the same in each attempt."""
    type: str
    """The notice's kind, or webhook-test."""
    state: str
    """waiting, delivered or failed."""
    created_at: datetime
    attempts: int
    attempted_at: datetime | None
    next_attempt_at: datetime | None
    status: int | None
    """The HTTP status of the last response."""
    problem: str | None
    """Why there was no response, or why there is no more attempt."""
