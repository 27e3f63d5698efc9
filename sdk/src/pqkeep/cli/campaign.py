"""``pqkeep campaign``: plan a move to a new key, count the data under old keys, and move it.

A scan reads headers only. Its file stays here. The service records a statement with the file's
digest.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import quote

import typer

from pqkeep import inputs
from pqkeep.algorithms import Algorithm
from pqkeep.cli.command import command
from pqkeep.cli.configuration import rules
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import as_json, show_facts, show_json, show_rows, show_table
from pqkeep.cli.failures import LEFT, OTHER, Refusal, printable
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.moving import Aim, Counts, Pace, Plan, Progress, Run, SourceKey
from pqkeep.cli.options import STANDARD, Force
from pqkeep.cli.sources import whole
from pqkeep.cli.stored import StoredKey
from pqkeep.cli.stores import Columns, Files, Lines, Place
from pqkeep.errors import ConflictError, how_to_install
from pqkeep.models import CampaignSource, CampaignTarget, ScannedVersion
from pqkeep.new_files import PRIVATE

if TYPE_CHECKING:
    from pqkeep.client import Client
    from pqkeep.models import Campaign as StoredCampaign
    from pqkeep.models import CampaignProgress, RefusedUses

FORMAT = "pqkeep/v1/campaign-scan"
LONGEST_URL = 4096
LONGEST_PLACE = 200
_WITH_VERSION = 3
"""The parts of a key's name with its version."""
_is_version = re.compile("[1-9][0-9]{0,9}").fullmatch
_COLUMNS = {
    "keyring": "KEYRING",
    "algorithm": "ALGORITHM",
    "key_version": "VERSION",
    "form": "FORM",
    "count": "COUNT",
    "state": "STATE",
}
_PLANS = {
    "name": "NAME",
    "state": "STATE",
    "sources": "FROM",
    "target": "TO",
    "quiet_days": "QUIET DAYS",
    "created_at": "CREATED",
}
_MOVED = {"source": "FROM", "target": "TO", "count": "MOVED", "last_at": "LAST MOVED"}
_SCANS = {
    "place": "PLACE",
    "left": "LEFT",
    "unreadable": "UNREADABLE",
    "scanned_at": "SCANNED",
    "principal": "PRINCIPAL",
}
_REFUSED = {
    "principal": "PRINCIPAL",
    "source": "KEY",
    "count": "REFUSED",
    "last_at": "LAST REFUSED",
}

app = typer.Typer(
    name="campaign",
    help="Plan a move to a new key, count what is left under old keys, and move it.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The campaign's name.")]
Paths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATH...]",
        help="Files and folders; - is standard input with a ciphertext on each line.",
        show_default=False,
    ),
]
Sql = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="A database, such as postgresql+psycopg://user@host/name. All users of this machine "
        "see a password in it.",
        show_default=False,
    ),
]
SqlFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The file of the database's URL.", show_default=False),
]
Table = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The table, or SCHEMA.TABLE.", show_default=False),
]
ColumnName = Annotated[
    str | None,
    typer.Option("--column", metavar="NAME", help="The column of ciphertexts.", show_default=False),
]
KeyColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="NAME",
        help="A column of a unique key. Can be repeated. By default the primary key.",
        show_default=False,
    ),
]
VersionColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The column of key versions, for ciphertexts that name no key.",
        show_default=False,
    ),
]
AlgorithmColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The column of algorithms, beside --version-column.",
        show_default=False,
    ),
]
KeyringColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The column of keyrings, beside --version-column.", show_default=False
    ),
]
WrappedKeys = Annotated[
    bool,
    typer.Option("--wrapped-keys", help="With --version-column: the column has wrapped keys."),
]
Keyring = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The keyring of texts that name only a version. By default the campaign's only source.",
        show_default=False,
    ),
]
AlgorithmName = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME",
        help="The algorithm of texts that name only a version.",
        show_default=False,
    ),
]
PlaceName = Annotated[
    str | None,
    typer.Option(
        "--place",
        metavar="NAME",
        help="The place's name in the statement. By default the path, or the table and column.",
        show_default=False,
    ),
]
AssociatedDataColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The column that each ciphertext is bound to, as text or bytes.",
        show_default=False,
    ),
]
ContextColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The column of the contexts of derived keys.", show_default=False
    ),
]


class Named(NamedTuple):
    """The options that name a place."""

    paths: Sequence[str]
    sql: str | None
    columns: Columns | None
    wraps: bool
    is_written: bool
    """True if standard output gets the lines of standard input."""


class Campaign:
    """A campaign, and the service that knows its keys."""

    def __init__(
        self, client: "Client", name: str, keyring: str | None, algorithm: str | None
    ) -> None:
        """Look at the campaign. Raises PqkeepError, and Refusal if it is closed."""
        self._client = client
        self._stored = client.campaigns.get(name)
        if self._stored.state != "open":
            raise Refusal(
                f"campaign {name} is closed", "open this campaign again, or name another campaign"
            )
        self._keyring = keyring
        self._algorithm = algorithm
        self._above: int | None = None

    @property
    def algorithm(self) -> str:
        """The target's."""
        return inputs.canonical(self._stored.target.algorithm)

    def aim(self) -> Aim:
        """Return the plan with the active version of the target."""
        stored = self._stored
        target = stored.target
        key = self._client.keys.active(target.algorithm, keyring=target.keyring)
        algorithm = self.algorithm
        plan = Plan(
            campaign=stored.name,
            sources=tuple(
                SourceKey(
                    keyring=source.keyring,
                    algorithm=inputs.canonical(source.algorithm),
                    key_versions=source.key_versions,
                )
                for source in stored.sources
            ),
            target=StoredKey(target.keyring, algorithm, key.key_version),
        )
        return Aim(plan, None if algorithm == Algorithm.XAES_256_GCM else key.public_key)

    def default(self) -> StoredKey | None:
        """Return version 1 of the key for texts that name no key. None if the key is unknown."""
        sources = self._stored.sources
        if len(sources) != 1 and (self._keyring is None or self._algorithm is None):
            return None
        (first, *_) = sources
        algorithm = inputs.canonical(self._algorithm or first.algorithm)
        return StoredKey(self._keyring or first.keyring, algorithm, 1)

    def of_version(self, version: int) -> StoredKey:
        """Return the key of a Transit text. Raises Refusal if the data does not name its version."""
        key = self.default()
        if key is None:
            raise Refusal(
                "Transit texts name only a version, and the campaign has several sources",
                "name their key: --keyring and --algorithm",
            )
        target = self._stored.target
        algorithm = inputs.canonical(target.algorithm)
        if (target.keyring, algorithm) == key[:2]:
            return key._replace(key_version=version)
        if self._above is None:
            newest = self._client.keys.active(key.algorithm, keyring=key.keyring)
            self._above = newest.key_version
            active = self._client.keys.active(algorithm, keyring=target.keyring)
            if active.key_version <= self._above:
                raise Refusal(
                    f"the target has version {active.key_version}, and the source has version "
                    f"{self._above}: Transit texts of both could not be told apart",
                    "move to a keyring whose versions begin above: pqkeep keyrings create",
                )
        if version > self._above:
            return StoredKey(target.keyring, algorithm, version)
        return key._replace(key_version=version)

    def require_columns(self, columns: Columns) -> None:
        """Raise Refusal if a moved row could not name its new key."""
        default, target = self.default(), self._stored.target
        has = columns.of_key
        algorithm = inputs.canonical(target.algorithm)
        if "algorithm" not in has and (default is None or default.algorithm != algorithm):
            raise Refusal(
                "a moved row needs a place for its new algorithm", "name it: --algorithm-column"
            )
        if "keyring" not in has and (default is None or default.keyring != target.keyring):
            raise Refusal(
                "a moved row needs a place for its new keyring", "name it: --keyring-column"
            )


def _named(
    paths: Sequence[str] | None,
    sql: str | None,
    sql_file: Path | None,
    names: Mapping[str, Any],
    invocation: Invocation,
) -> tuple[Sequence[str], str | None, Columns | None]:
    """Return the paths, or the database's URL and the columns. Raises Refusal."""
    if sql is not None and sql_file is not None:
        raise Refusal("--sql and --sql-file cannot be combined", "leave one of them out")
    if sql_file is not None:
        sql = whole(
            str(sql_file), invocation, LONGEST_URL, "name a file with only the URL"
        ).decode()
        sql = sql.strip()
    if (sql is None) == (not paths):
        raise Refusal("name one place", "name files and folders, or -, or --sql")
    if sql is None:
        given = [name for name, value in names.items() if value]
        if given:
            raise Refusal(f"--{given[0].replace('_', '-')} needs --sql", "name a database: --sql")
        if STANDARD in (paths or ()) and len(paths or ()) > 1:
            raise Refusal("standard input cannot be combined with files", "name - alone")
        return paths or (), None, None
    if not names["table"] or not names["column"]:
        raise Refusal("--sql needs --table and --column", "name the column of ciphertexts")
    if (names["algorithm_column"] or names["keyring_column"] or names["wrapped_keys"]) and not (
        names["version_column"]
    ):
        raise Refusal(
            "--algorithm-column, --keyring-column and --wrapped-keys need --version-column",
            "name the column of key versions",
        )
    return (
        (),
        sql,
        Columns(
            table=names["table"],
            column=names["column"],
            keys=names["key"] or (),
            key_version=names["version_column"],
            algorithm=names["algorithm_column"],
            keyring=names["keyring_column"],
            associated_data=names["associated_data_column"],
            context=names["context_column"],
        ),
    )


@contextmanager
def _place(named: Named, campaign: Campaign, invocation: Invocation) -> Iterator[tuple[Place, str]]:
    """Open a place. Returns the campaign with its name."""
    if named.sql is not None and named.columns is not None:
        if named.columns.key_version is not None:
            campaign.require_columns(named.columns)
        try:
            from pqkeep.cli.columns import Column  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            raise Refusal("SQLAlchemy is not installed", f"run {how_to_install('sql')}") from None
        column = Column(
            named.sql, named.columns, campaign.of_version, campaign.default(), wraps=named.wraps
        )
        try:
            yield column, column.name
        finally:
            column.close()
    elif STANDARD in named.paths:
        yield Lines(campaign.of_version, is_written=named.is_written), "standard input"
    else:
        files = Files(named.paths, invocation, campaign.of_version)
        yield files, ", ".join(str(Path(path).absolute()) for path in named.paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table of a scan."""

    keyring: str
    algorithm: str
    key_version: int
    form: str
    count: int
    state: str


def _rows(counts: Counts, plan: Plan) -> list[Row]:
    def state(key: StoredKey) -> str:
        if key == plan.target:
            return "target"
        return "left" if plan.is_source(key) else "other"

    return [
        Row(**key._asdict(), form=form.value, count=count, state=state(key))
        for (key, form), count in sorted(counts.by_key.items())
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """A campaign, as a line of the table."""

    name: str
    state: str
    sources: str
    target: str
    quiet_days: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRow:
    """Moved ciphertexts or refused uses, as a line of the table."""

    source: str
    target: str = ""
    principal: str = ""
    count: int
    last_at: datetime


@command(app, "create")
def create(
    invocation: Invocation,
    name: Name,
    *,
    from_: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="KEYRING/ALGORITHM[/VERSION]",
            help="A key to move away from, such as default/ML-KEM-768. Without a version, it means all versions, except the target's active version. Can be repeated.",
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="KEYRING/ALGORITHM",
            help="The key to move to, such as default/ML-KEM-1024. Its active version is used.",
        ),
    ],
    quiet_days: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="The days without a use after which the sources are quiet."
        ),
    ] = 30,
    description: Annotated[
        str, typer.Option(metavar="TEXT", help="A description for people.", show_default=False)
    ] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            "-f",
            help="Replace the campaign if it exists, and open it. Its scans and moves stay.",
        ),
    ] = False,
) -> None:
    """Create a campaign: a plan to move data from old keys to a new one. It enforces nothing."""
    sources, target = _sources(from_), _target(to)
    with invocation.connect() as client:
        try:
            made = client.campaigns.put(
                name,
                sources=sources,
                target=target,
                description=description,
                quiet_days=quiet_days,
                replace=force,
            )
        except ConflictError:
            if force:
                raise
            raise Refusal(
                f"the campaign {name} exists", "replace it with --force, or choose another name"
            ) from None
    _show_plan(invocation, made)


@command(app, "list")
def list_campaigns(invocation: Invocation) -> None:
    """List campaigns, including closed ones."""
    with invocation.connect() as client:
        found = client.campaigns.list()
    if invocation.is_json:
        show_rows(invocation, "campaigns", found, {})
    else:
        show_table((_plan_row(campaign) for campaign in found), _PLANS)


@command(app, "show")
def show(invocation: Invocation, name: Name) -> None:
    """Show a campaign and its progress."""
    with invocation.connect() as client:
        if invocation.is_json:
            show_json(client.inventory.evidence(f"/campaigns/{quote(name, safe='')}"))
            return
        found = client.campaigns.progress(name)
    _show_progress(found)


@command(app, "close")
def close(invocation: Invocation, name: Name) -> None:
    """Close a campaign. Its name, scans and moves stay stored."""
    with invocation.connect() as client:
        closed = client.campaigns.close(name)
    _show_plan(invocation, closed)


def _sources(given: Sequence[str]) -> list[CampaignSource]:
    """Return the sources in texts. Raises Refusal."""
    versions: dict[tuple[str, str], list[int | None]] = {}
    for text in given:
        keyring, algorithm, version = _key(text, _WITH_VERSION)
        versions.setdefault((keyring, algorithm), []).append(version)
    for (keyring, algorithm), named in versions.items():
        if None in named and len(named) > 1:
            raise Refusal(
                f"--from names {keyring}/{algorithm} more than once, and once without a version",
                "name all versions, or none",
            )
    return [
        CampaignSource(
            keyring=keyring,
            algorithm=algorithm,
            key_versions=tuple(version for version in named if version is not None) or None,
        )
        for (keyring, algorithm), named in versions.items()
    ]


def _target(text: str) -> CampaignTarget:
    """Return the target in a text. Raises Refusal."""
    keyring, algorithm, _ = _key(text, 2)
    return CampaignTarget(keyring=keyring, algorithm=algorithm)


def _key(text: str, parts: int) -> tuple[str, str, int | None]:
    """Return keyring, algorithm and version of a text with 2 to this many parts."""
    named = text.split("/")
    if not (len(named) in {2, parts} and all(named) and all(map(_is_version, named[2:]))):
        if parts == _WITH_VERSION:
            raise Refusal(
                "--from must be KEYRING/ALGORITHM or KEYRING/ALGORITHM/VERSION",
                "for example --from default/ML-KEM-768",
            )
        raise Refusal("--to must be KEYRING/ALGORITHM", "for example --to default/ML-KEM-1024")
    keyring, algorithm, *version = named
    return keyring, inputs.canonical(algorithm), int(version[0]) if version else None


def _source_names(campaign: "StoredCampaign") -> list[str]:
    """Return the sources in the form of --from."""
    return [
        f"{source.keyring}/{source.algorithm}" + ("" if version is None else f"/{version}")
        for source in campaign.sources
        for version in source.key_versions or (None,)
    ]


def _plan_row(campaign: "StoredCampaign") -> PlanRow:
    return PlanRow(
        name=campaign.name,
        state=campaign.state,
        sources=", ".join(_source_names(campaign)),
        target=f"{campaign.target.keyring}/{campaign.target.algorithm}",
        quiet_days=campaign.quiet_days,
        created_at=campaign.created_at,
    )


def _show_plan(invocation: Invocation, campaign: "StoredCampaign") -> None:
    if invocation.is_json:
        show_facts(invocation, campaign)
        return
    row = _plan_row(campaign)
    show_facts(invocation, {**asdict(campaign), "sources": row.sources, "target": row.target})


def _show_progress(found: "CampaignProgress") -> None:
    """Write a sentence for each kind of knowledge, with its table."""
    plan = _plan_row(found.campaign)

    def say(text: str) -> None:
        typer.echo(printable(text))

    say(f"{plan.name} is {plan.state}: from {plan.sources} to {plan.target}.")
    typer.echo()
    say(
        f"Moved (exact): {_counted(found.moved, 're-encryption')}, by the audit log. "
        "Scans show local files, which do not count here."
    )
    if found.moved_by_version:
        rows = (
            CountRow(
                source=f"{moved.keyring}/{moved.algorithm}/{moved.key_version}",
                target=f"{moved.target_keyring}/{moved.target_algorithm}"
                f"/{moved.target_key_version}",
                count=moved.count,
                last_at=moved.last_at,
            )
            for moved in found.moved_by_version
        )
        show_table(rows, _MOVED)
    typer.echo()
    if found.left is None:
        say(f"Left: unknown. Scan each place: pqkeep campaign scan {plan.name} PLACE")
    else:
        left = _counted(found.left, "ciphertext")
        say(f"Left (a statement): {left}, by the newest scan of each place.")
        show_table(found.scans, _SCANS)
    typer.echo()
    used = "The service saw no use of a source."
    if found.last_used_at is not None:
        used = f"The newest use of a source was at {as_json(found.last_used_at, 'seconds')}."
    days = _counted(plan.quiet_days, "day")
    say(f"Quiet for {days} (observed): {'yes' if found.is_quiet else 'no'}. {used}")
    typer.echo()
    if found.canary == "none":
        say("Canary: none yet.")
        return
    until = as_json(found.canary_until, "seconds")
    refused = _counted(sum(uses.count for uses in found.refused), "refused use")
    more = "" if found.is_complete else ", and more"
    say(f"Canary until {until} (observed): {found.canary}. {refused}{more}.")
    if found.refused:
        show_table(map(_refused_row, found.refused), _REFUSED)


def _refused_row(uses: "RefusedUses") -> CountRow:
    version = "active" if uses.key_version is None else uses.key_version
    return CountRow(
        source=f"{uses.keyring}/{uses.algorithm}/{version}",
        principal=uses.principal,
        count=uses.count,
        last_at=uses.last_at,
    )


def _name_of_place(text: str) -> str:
    """Return the name of a scanned place. Raises Refusal, because a cut name may be another's."""
    if len(text) > LONGEST_PLACE or printable(text) != text:
        raise Refusal(
            f"the place's name is longer than {LONGEST_PLACE} characters, or has control characters",
            "give it a short name: --place NAME",
        )
    return text


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@command(app, "scan")
def scan(  # noqa: PLR0913 - an option each
    invocation: Invocation,
    name: Name,
    paths: Paths = None,
    *,
    sql: Sql = None,
    sql_file: SqlFile = None,
    table: Table = None,
    column: ColumnName = None,
    key: KeyColumns = None,
    version_column: VersionColumn = None,
    algorithm_column: AlgorithmColumn = None,
    keyring_column: KeyringColumn = None,
    wrapped_keys: WrappedKeys = False,
    keyring: Keyring = None,
    algorithm: AlgorithmName = None,
    place: PlaceName = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            "-o",
            metavar="FILE",
            help="The scan's file. By default it has the names of campaign and time.",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Count the ciphertexts in a place by key version, and record the statement.

    Only headers are read. The scan's file stays here: keep it as evidence. The service gets the
    counts and the file's digest. A scan covers only its place. Data elsewhere is not counted.
    """
    names = {
        "table": table,
        "column": column,
        "key": key,
        "version_column": version_column,
        "algorithm_column": algorithm_column,
        "keyring_column": keyring_column,
        "wrapped_keys": wrapped_keys,
        "associated_data_column": None,
        "context_column": None,
    }
    found, url, columns = _named(paths, sql, sql_file, names, invocation)
    with invocation.connect() as client:
        campaign = Campaign(client, name, keyring, algorithm)
        plan = campaign.aim().plan
        counts, progress = Counts(), Progress(invocation)
        named = Named(found, url, columns, wrapped_keys, is_written=False)
        with _place(named, campaign, invocation) as (opened, address):
            named_place = _name_of_place(place or address)

            def look(entry: Any) -> bool:
                counts.add(entry, plan)
                progress.read += 1
                progress.tick()
                return False

            for _ in opened.pages(look):
                pass
        progress.end_line()
        at = datetime.now(UTC)
        rows = _rows(counts, plan)
        facts = {
            "campaign": name,
            "place": named_place,
            "scanned_at": at,
            "left": sum(row.count for row in rows if row.state == "left"),
            "counts": rows,
            "older_file_keys": counts.older_file_keys,
            "unreadable": counts.unreadable,
            "unreadable_names": counts.unreadable_names,
            "not_pqkeep": counts.other,
            "empty": counts.empty,
        }
        data = json.dumps(as_json({"format": FORMAT, **facts}), indent=2).encode() + b"\n"
        file = to or f"{name}-{at:%Y%m%dT%H%M%S.%fZ}.scan.json"
        with destination(file, otherwise=file, force=force, mode=PRIVATE) as target:
            target.write(data)
        digest = hashlib.sha256(data).hexdigest()
        client.campaigns.add_scan(
            name,
            place=named_place,
            sha256=digest,
            scanned_at=at,
            counts=[
                ScannedVersion(**key._asdict(), count=count)
                for key, count in counts.by_version().items()
            ],
            unreadable=counts.unreadable,
        )
    if file == STANDARD:
        return
    if invocation.is_json:
        show_json({**facts, "file": file, "sha256": digest})
        return
    if rows:
        show_table(rows, _COLUMNS)
    for text in counts.unreadable_names:
        typer.echo(printable(f"pqkeep: {text}"), err=True)
    shown = ("place", "left", "older_file_keys", "unreadable", "not_pqkeep", "empty")
    show_facts(
        invocation, {**{fact: facts[fact] for fact in shown}, "file": file, "sha256": digest}
    )


@command(app, "run")
def run(  # noqa: PLR0913 - an option each
    invocation: Invocation,
    name: Name,
    paths: Paths = None,
    *,
    sql: Sql = None,
    sql_file: SqlFile = None,
    table: Table = None,
    column: ColumnName = None,
    key: KeyColumns = None,
    version_column: VersionColumn = None,
    algorithm_column: AlgorithmColumn = None,
    keyring_column: KeyringColumn = None,
    wrapped_keys: WrappedKeys = False,
    keyring: Keyring = None,
    algorithm: AlgorithmName = None,
    associated_data: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="All ciphertexts are bound to this.", show_default=False),
    ] = None,
    key_context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="TEXT", help="The context of all ciphertexts.", show_default=False
        ),
    ] = None,
    associated_data_column: AssociatedDataColumn = None,
    context_column: ContextColumn = None,
    new_file_key: Annotated[
        bool,
        typer.Option(
            "--new-file-key",
            help="Encrypt local data again. A new header alone does not help against a broken KEM.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would move.")] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N", min=0.1, help="The most ciphertexts in a second.", show_default=False
        ),
    ] = None,
) -> None:
    """Move the ciphertexts in a place to the campaign's target.

    Run the same command again after an interruption: what is under the target is not moved again.
    Several runs may work at once. If another program changes an entry meanwhile, the entry stays as
    that program wrote it. Nothing is deleted. With -, the lines go to standard output.

    The status is 0 if no entry is left, 9 if entries are left, and 1 if anything failed.
    """
    names = {
        "table": table,
        "column": column,
        "key": key,
        "version_column": version_column,
        "algorithm_column": algorithm_column,
        "keyring_column": keyring_column,
        "wrapped_keys": wrapped_keys,
        "associated_data_column": associated_data_column,
        "context_column": context_column,
    }
    found, url, columns = _named(paths, sql, sql_file, names, invocation)
    bound = {"associated_data": associated_data, "context": key_context}
    with invocation.connect() as client:
        campaign = Campaign(client, name, keyring, algorithm)
        rules(invocation).kem(campaign.algorithm)
        progress = Progress(invocation)
        named = Named(found, url, columns, wrapped_keys, is_written=not dry_run)
        with _place(named, campaign, invocation) as (opened, _):
            moving = Run(
                client=client,
                invocation=invocation,
                aim=campaign.aim,
                place=opened,
                progress=progress,
                pace=Pace(invocation, progress, rate),
                bound={what: text.encode() for what, text in bound.items() if text is not None},
                new_file_key=new_file_key,
                is_dry=dry_run,
            )
            moving.run()
    counts = moving.counts
    facts = {
        "campaign": name,
        "moved": moving.moved,
        "left": moving.left,
        "failed": len(moving.failures),
        "target": counts.by_version()[moving.plan.target],
        "unreadable": counts.unreadable,
        "not_pqkeep": counts.other,
        "empty": counts.empty,
    }
    if STANDARD in found:
        invocation.note(json.dumps(facts))
    elif invocation.is_json:
        listed = [{"name": name, "reason": why} for name, why in moving.failures.items()]
        show_json({**facts, "failures": listed})
    else:
        show_facts(invocation, facts)
    if moving.failures:
        raise typer.Exit(OTHER)
    if moving.left:
        raise typer.Exit(LEFT)
