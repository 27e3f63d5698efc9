"""Assembles the gateway. The only module that names concrete classes."""

import asyncio
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import formatdate
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.admission import Admission, Authenticator
from pqkeep_gateway.access.callers import OperatorRole, Role
from pqkeep_gateway.access.clock import Clock, date_of, steady_clock
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, read_pepper
from pqkeep_gateway.access.entitlements import Plan, Tier
from pqkeep_gateway.access.last_uses import LastUses
from pqkeep_gateway.access.local_shares import LocalShares
from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.access.principals import ApiKeyPrincipal, Principal
from pqkeep_gateway.access.rate_limit import Limit, MemoryRateLimiter, RateLimiter
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.access.trusted_proxies import TrustedProxies
from pqkeep_gateway.api import (
    api_keys,
    approvals,
    audit,
    batch,
    billing,
    campaigns,
    cbom,
    external_keys,
    installation,
    inventory,
    kem,
    key_import,
    key_operation,
    keyless,
    keyrings,
    keys,
    mac,
    notices,
    operators,
    passkeys,
    password_resets,
    plan_limits,
    public_keys,
    re_encryption,
    registration,
    rules,
    search,
    second_factors,
    sign_in,
    signature,
    single_sign_on,
    team,
    tenants,
    usage,
    webhooks,
    workloads,
)
from pqkeep_gateway.api.audit_export import ExportLimits
from pqkeep_gateway.api.errors import answer_to
from pqkeep_gateway.api.key_operation import KeyAccess
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.audit_stream import AuditStream, Sink
from pqkeep_gateway.config import Config, Link, OpenTelemetry, Shard, StripeSettings
from pqkeep_gateway.config import SingleSignOn as SingleSignOnSettings
from pqkeep_gateway.delivery.audit_sinks import (
    DatagramSyslog,
    FileSink,
    HttpCollector,
    StreamSyslog,
    trusting,
)
from pqkeep_gateway.delivery.issuer_keys import IssuerKeys
from pqkeep_gateway.delivery.mail_delivery import DisabledMailer, Mailbox, MailDelivery, Mailer
from pqkeep_gateway.delivery.public_addresses import PublicAddresses
from pqkeep_gateway.delivery.webhooks import WebhookDelivery
from pqkeep_gateway.delivery.witnesses import WitnessCarrier
from pqkeep_gateway.http.connection import ConnectionLimits
from pqkeep_gateway.http.connections import Connections
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.observer import RequestObserver, Route
from pqkeep_gateway.http.pipeline import UNVERIFIED, Pipeline, SignedBodies
from pqkeep_gateway.http.road import Road
from pqkeep_gateway.http.tls_server import TlsServer
from pqkeep_gateway.key_client import KeyClient, KeyServiceAddress, RemoteHost, UnixSocket
from pqkeep_gateway.management.app import Management, management_app
from pqkeep_gateway.management.collection import (
    BACKLOG_SECONDS,
    BACKLOG_WAIT_SECONDS,
    Collection,
    Sources,
)
from pqkeep_gateway.management.installation import Inspection, MailMode
from pqkeep_gateway.management.installation_notices import Found, findings
from pqkeep_gateway.management.readiness import (
    ACCOUNTS_DATABASE,
    CHECK_SECONDS,
    RATE_LIMITS,
    WAIT_SECONDS,
    Readiness,
)
from pqkeep_gateway.outgoing_mail import MailKind, is_email, new_mail
from pqkeep_gateway.payments.stripe_billing import StripeBilling
from pqkeep_gateway.people.attempt_limits import AttemptLimits, KnownNetworks
from pqkeep_gateway.people.challenges import Challenges, EmailCodes
from pqkeep_gateway.people.invitations import Invitations, TeamMembers
from pqkeep_gateway.people.passkeys import Ceremonies, Passkeys, RelyingParty, relying_party
from pqkeep_gateway.people.password_resets import PasswordResets
from pqkeep_gateway.people.passwords import PasswordChange, Passwords, hasher
from pqkeep_gateway.people.registration import Registration
from pqkeep_gateway.people.second_factors import SecondFactors
from pqkeep_gateway.people.sessions import Sessions
from pqkeep_gateway.people.sign_in import SignIn
from pqkeep_gateway.people.single_sign_on import (
    BEGINNINGS,
    OperatorSignOn,
    ProviderRequests,
    SingleSignOn,
)
from pqkeep_gateway.people.step_up import Proofs, StepUp, StepUpMethods
from pqkeep_gateway.portal.app import portal
from pqkeep_gateway.reference.documents import documents
from pqkeep_gateway.shards import Departures, Shards
from pqkeep_gateway.single_sign_on.openid_provider import OpenIdProvider
from pqkeep_gateway.storage import monitoring
from pqkeep_gateway.storage.api_keys import SqlApiKeys
from pqkeep_gateway.storage.approvals import SqlApprovals
from pqkeep_gateway.storage.audit_outbox import RefusedEvent, SqlAuditOutbox, SqlCursors
from pqkeep_gateway.storage.billing import SqlBilling
from pqkeep_gateway.storage.campaigns import SqlCampaigns
from pqkeep_gateway.storage.database import close_database, open_database
from pqkeep_gateway.storage.deletion import SqlDeletions
from pqkeep_gateway.storage.external_keys import SqlExternalKeys
from pqkeep_gateway.storage.identities import Provider, SqlIdentities
from pqkeep_gateway.storage.invitations import SqlInvitations
from pqkeep_gateway.storage.known_networks import SqlKnownNetworks
from pqkeep_gateway.storage.last_uses import SqlLastUses
from pqkeep_gateway.storage.notices import SqlNotices
from pqkeep_gateway.storage.operators import SqlOperators, SqlOperatorSessions
from pqkeep_gateway.storage.outgoing_mail import SqlMailOutbox
from pqkeep_gateway.storage.passkeys import SqlPasskeys
from pqkeep_gateway.storage.password_resets import SqlPasswordResets
from pqkeep_gateway.storage.registrations import SqlRegistrations
from pqkeep_gateway.storage.second_factors import SqlChallenges, SqlSecondFactors
from pqkeep_gateway.storage.sessions import SqlSessions
from pqkeep_gateway.storage.shards import SqlShards
from pqkeep_gateway.storage.step_up_tokens import SqlStepUpTokens
from pqkeep_gateway.storage.team import SqlTeam
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.storage.usage import SqlUsage
from pqkeep_gateway.storage.users import SqlUsers
from pqkeep_gateway.storage.webhooks import SqlWebhooks
from pqkeep_gateway.storage.workloads import SqlWorkloads
from pqkeep_gateway.tenancy import cedar, plans
from pqkeep_gateway.tenancy.api_keys import ApiKeys
from pqkeep_gateway.tenancy.approvals import Approvals
from pqkeep_gateway.tenancy.billing import BuiltInBilling
from pqkeep_gateway.tenancy.deletion import Deletions
from pqkeep_gateway.tenancy.notice_checks import NoticeChecks
from pqkeep_gateway.tenancy.operators import Operators, OperatorSessions
from pqkeep_gateway.tenancy.plans import Plans
from pqkeep_gateway.tenancy.quota import Quotas
from pqkeep_gateway.tenancy.tenants import Tenants
from pqkeep_gateway.tenancy.workloads import Workloads
from pqkeep_gateway.transit import routes as transit
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.cached import Cached
from pqkeep_protocol.keys import DEFAULT_SHARD, INSTALLATION, TenantId
from pqkeep_protocol.link import Identity, LinkTls
from pqkeep_protocol.link import Role as LinkRole
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.hardening import begin_again, is_to_begin_again
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.secret_files import read_secret_text
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from pqkeep_gateway.payments.stripe_account import StripeAccount
    from pqkeep_gateway.storage.redis_rate_limiter import RedisRateLimiter
    from pqkeep_gateway.tracing import Tracing


_LOG = logger(__name__)


@dataclass(frozen=True, slots=True)
class Gateway:
    """The running parts of the gateway."""

    road: Road
    key_clients: Mapping[str, KeyClient]
    """The key-service client of each shard."""
    approvals: Approvals
    audit_delivery: AuditDelivery
    billing: BuiltInBilling
    deletions: Deletions
    mail_delivery: MailDelivery
    notice_checks: NoticeChecks
    webhook_delivery: WebhookDelivery
    last_uses: LastUses
    link: LinkTls | None
    """TLS to key services on other hosts."""
    audit_streams: Mapping[str, AuditStream]
    """The audit stream of each shard. Empty without a sink."""
    witness_carriers: Sequence[WitnessCarrier]
    """One for each shard."""
    observer: RequestObserver
    connections: Connections
    management: Management
    close: Callable[[], Awaitable[None]]


async def assemble(  # noqa: PLR0915 - a flat list of all parts
    config: Config, here: str, limits: ConnectionLimits, tls: TlsServer | None
) -> Gateway:
    """Open the resources in the settings and connect all parts. Raises ConfigError.

    ``here``: the gateway's own address. Mail links to it unless public_url is set.
    """
    mailer = _mailer(config)
    sends_mail = not isinstance(mailer, DisabledMailer)
    pepper = read_pepper(config.pepper_file)
    terms = plans.read(config.plans_file)
    policy = cedar.build(terms, config.policy_directory)
    clock = steady_clock()
    rate_limiter = await _rate_limiter(config, clock)
    account = None if config.stripe is None else _stripe_account(config.stripe)
    clients = _provider_clients(config)
    engine = await _open_accounts(config, pepper)

    found = await _key_services(config, engine, clock)
    tracing = None if config.opentelemetry is None else _tracing(config.opentelemetry)
    shards = found.shards if tracing is None else found.shards.through(tracing.calls)
    lookups = CredentialLookups(clock)
    last_uses = LastUses(SqlLastUses(engine))
    authenticator = Authenticator(
        {
            CredentialKind.API_KEY: SqlApiKeys(engine).find,
            CredentialKind.WORKLOAD: SqlWorkloads(engine).find,
        },
        SqlOperators(engine).find,
        lookups,
        rate_limiter,
        pepper,
        _operator_digest(config),
        last_uses,
        clock,
    )
    audit_delivery = AuditDelivery(SqlAuditOutbox(engine), found.shards)
    sessions = Sessions(
        SqlSessions(engine),
        lookups,
        pepper,
        audit_delivery,
        clock,
        timedelta(days=config.session_lifetime_days),
    )
    operator_sessions = OperatorSessions(
        SqlOperatorSessions(engine),
        authenticator,
        lookups,
        pepper,
        audit_delivery,
        _operator_digest(config),
        clock,
        [client.provider for client in clients if client.provider.operator_roles],
    )
    admission = Admission(
        authenticator,
        rate_limiter,
        {tier: term.requests_per_minute for tier, term in terms.items()},
        sessions.find,
        operator_sessions.find,
        last_uses,
        found.departures,
        clock=clock,
    )
    quotas = Quotas(
        SqlUsage(engine),
        {tier: plans.bound(term.operations_per_month) for tier, term in terms.items()},
        clock,
    )
    access = KeyAccess(policy, quotas, shards.keys, SqlCampaigns(engine))

    stored_tenants = SqlTenants(engine, found.shards.names)
    all_tenants = Tenants(stored_tenants, rate_limiter.announce_change, audit_delivery)
    deletions = Deletions(
        SqlDeletions(engine), found.shards, rate_limiter.announce_change, audit_delivery, clock
    )
    all_api_keys = ApiKeys(
        SqlApiKeys(engine),
        terms,
        pepper,
        lookups,
        rate_limiter.announce_change,
        audit_delivery,
        timedelta(seconds=config.api_key_overlap_seconds),
        clock,
    )
    users, receivers = SqlUsers(engine), PublicAddresses(Networks(config.webhook_networks))
    passwords = Passwords(
        pepper,
        hasher(config.password_costs),
        disabled_for={
            TenantId(provider.tenant)
            for provider in config.single_sign_on
            if provider.tenant is not None and not provider.local_passwords
        },
    )
    attempts = AttemptLimits(
        rate_limiter, KnownNetworks(SqlKnownNetworks(engine), pepper, clock), pepper
    )
    factors = SecondFactors(
        SqlSecondFactors(engine), users, attempts, pepper, audit_delivery, clock
    )
    challenges = Challenges(
        SqlChallenges(engine), users, lookups, pepper, clock, sends_mail=sends_mail
    )
    codes = EmailCodes(
        SqlChallenges(engine), users, challenges, sessions, attempts, pepper, audit_delivery, clock
    )
    all_passkeys = Passkeys(
        SqlPasskeys(engine),
        users,
        factors,
        passwords,
        attempts,
        lookups,
        Ceremonies(_relying_party(config, here), shards.keys, pepper, clock),
        audit_delivery,
    )
    signing_in = SignIn(
        users, sessions, passwords, attempts, factors, challenges, all_passkeys, audit_delivery
    )
    step_up = StepUp(
        SqlStepUpTokens(engine),
        users,
        Proofs(factors, all_passkeys, passwords),
        attempts,
        pepper,
        audit_delivery,
        clock,
    )
    invitations = Invitations(
        SqlInvitations(engine),
        users,
        sessions,
        passwords,
        attempts,
        lookups,
        pepper,
        audit_delivery,
        clock,
    )
    sales, built_in = _sales(
        account,
        terms,
        engine,
        quotas,
        rate_limiter.announce_change,
        audit_delivery,
        clock,
        self_service=config.self_service,
    )
    mail_delivery = MailDelivery(
        SqlMailOutbox(engine), mailer, pepper, config.pages_url or here, clock
    )
    cookies = Cookies(config.cookies == "secure", (config.public_url, config.portal_url))
    sign_ons = _sign_ons(
        clients,
        SqlIdentities(engine),
        sessions,
        operator_sessions,
        pepper,
        audit_delivery,
        clock,
    )
    proxies = TrustedProxies(config.trusted_proxies)
    connections = _connections(limits, proxies)
    observer = RequestObserver(logs=config.access_log)
    audit_streams = _audit_streams(config, engine, found.clients, clock)
    webhook_delivery = WebhookDelivery(SqlWebhooks(engine), pepper, receivers, clock)
    management = _management(
        config,
        engine,
        rate_limiter,
        mail_delivery,
        Operators(SqlOperators(engine), pepper),
        Sources(
            observer=observer,
            connections=connections,
            waiting_calls=lambda: sum(client.waiting for client in found.clients.values()),
            refusals={shard: client.refusals for shard, client in found.clients.items()},
            key_services={
                shard: Cached(
                    client.metrics,
                    otherwise=None,
                    name=f"the metrics of the key service of {shard}",
                    seconds=CHECK_SECONDS,
                    wait_seconds=WAIT_SECONDS,
                )
                for shard, client in found.clients.items()
            },
            shards=Cached(
                found.directory.list,
                otherwise=None,
                name="the list of shards",
                seconds=BACKLOG_SECONDS,
                wait_seconds=BACKLOG_WAIT_SECONDS,
            ),
            find_backlog=partial(monitoring.find_backlog, engine),
            waiting_passwords=lambda: passwords.waiting,
            rate=admission.closeness,
            quota=quotas.closeness,
            database_folder=(
                None if config.database.is_on_server else Path(config.database.location).parent
            ),
            mail_attempts=mail_delivery.attempts,
            webhook_attempts=webhook_delivery.attempts,
            tls=tls,
            link=found.link,
            audit_streams=audit_streams,
        ),
        found.shards,
    )
    notice_checks = _observed(
        NoticeChecks(
            SqlNotices(engine),
            stored_tenants,
            shards.keys,
            quotas,
            partial(_find_installation, management.inspection, clock),
            admission.take_used_up,
            clock,
            config.operators_mail,
        ),
        observer,
        last_uses,
        clock,
    )
    all_approvals = Approvals(
        SqlApprovals(engine),
        users,
        audit_delivery,
        clock,
        timedelta(days=config.approval_days),
    )
    acting = (
        *(key_operation.endpoint(row, access) for row in kem.OPERATIONS),
        key_operation.endpoint(re_encryption.OPERATION, access),
        *(key_operation.endpoint(row, access) for row in signature.OPERATIONS),
        *(key_operation.endpoint(row, access) for row in mac.OPERATIONS),
        *keyless.endpoints(access),
        *batch.endpoints(access, audit_delivery),
        *keys.endpoints(
            access, terms, partial(_tell_owners, engine, clock), config.min_archive_days
        ),
        *public_keys.endpoints(access),
        *keyrings.endpoints(
            access, terms, partial(_tell_owners, engine, clock), config.min_archive_days
        ),
        *key_import.endpoints(access, terms),
        *campaigns.endpoints(access, audit_delivery, clock),
        *rules.endpoints(access),
        *tenants.endpoints(
            all_tenants,
            stored_tenants,
            deletions,
            open_signup=config.signup == "open",
            default_plan=Plan(config.default_plan),
            min_deletion_days=0 if config.cookies == "loopback" else 1,
        ),
        *api_keys.endpoints(stored_tenants, SqlApiKeys(engine), all_api_keys, shards.keys),
        *workloads.endpoints(
            stored_tenants,
            Workloads(
                SqlWorkloads(engine),
                IssuerKeys(receivers, clock).find,
                shards.keys,
                pepper,
                lookups,
                rate_limiter.announce_change,
                audit_delivery,
                clock,
            ),
            shards.keys,
            receivers,
            clock,
        ),
        *audit.endpoints(shards, ExportLimits(rate_limiter), users, stored_tenants),
        *search.endpoints(shards, SqlApiKeys(engine), SqlTeam(engine), stored_tenants),
        *external_keys.endpoints(SqlExternalKeys(engine), audit_delivery, clock),
        *webhooks.endpoints(SqlWebhooks(engine), pepper, receivers, audit_delivery, clock),
        *inventory.endpoints(
            access.keys, SqlExternalKeys(engine), SqlApiKeys(engine), SqlWorkloads(engine), clock
        ),
        *cbom.endpoints(
            access,
            shards,
            cbom.tls_groups(
                has_tls=tls is not None, require_post_quantum=config.require_post_quantum
            ),
        ),
        *installation.endpoints(management.inspection),
        *notices.endpoints(
            SqlNotices(engine),
            notice_checks.settle,
            notice_checks.installation,
            stored_tenants,
            audit_delivery,
            clock,
        ),
        *plan_limits.endpoints(shards.keys, all_api_keys, terms, quotas, admission),
        *usage.endpoints(shards, stored_tenants, quotas, admission, clock),
        *sign_in.endpoints(
            signing_in,
            invitations,
            PasswordChange(users, passwords, audit_delivery, clock),
            sessions,
            users,
            codes,
            cookies,
            sends_mail=sends_mail,
        ),
        *registration.endpoints(
            Registration(
                SqlRegistrations(engine, found.shards.names),
                users,
                sessions,
                passwords,
                attempts,
                lookups,
                pepper,
                clock,
            ),
            cookies,
            open_signup=config.signup == "open",
            sends_mail=sends_mail,
        ),
        *password_resets.endpoints(
            PasswordResets(
                SqlPasswordResets(engine),
                users,
                passwords,
                attempts,
                lookups,
                pepper,
                audit_delivery,
                clock,
            ),
            sends_mail=sends_mail,
        ),
        *second_factors.endpoints(
            signing_in,
            factors,
            codes,
            step_up,
            all_tenants,
            stored_tenants,
            cookies,
            all_approvals,
            sends_mail=sends_mail,
        ),
        *passkeys.endpoints(all_passkeys, signing_in, step_up, cookies),
        *single_sign_on.endpoints(
            [sign_on.provider for sign_on in sign_ons],
            StepUpMethods(
                users, passwords, SqlIdentities(engine), [sign_on.provider for sign_on in sign_ons]
            ),
        ),
        *team.endpoints(
            TeamMembers(SqlTeam(engine), audit_delivery),
            SqlTeam(engine),
            invitations,
            stored_tenants,
            cookies,
            sends_mail=sends_mail,
        ),
        *operators.endpoints(Operators(SqlOperators(engine), pepper), operator_sessions, cookies),
        *sales,
    )
    api = (*acting, *approvals.endpoints(all_approvals, acting))
    outside = (
        installation.health_endpoint(
            partial(_is_healthy, found.clients.values(), management.readiness)
        ),
    )
    pipeline = Pipeline(
        admission,
        rate_limiter,
        cookies,
        step_up,
        operator_sessions,
        audit_delivery,
        answer_to,
        proxies,
        SignedBodies(SourceBudget(UNVERIFIED, clock)),
        observer,
        approvals.gate(stored_tenants, all_approvals),
    )
    return Gateway(
        road=Road(
            pipeline,
            shards.keys,
            api,
            outside,
            {
                **documents(api, outside),
                **portal(
                    api,
                    pipeline,
                    users.save_language,
                    moved=config.moved_pages,
                    development=config.cookies == "loopback",
                ),
                **single_sign_on.pages(
                    sign_ons,
                    sessions,
                    operator_sessions,
                    cookies,
                    proxies,
                    config.pages_url or here,
                ),
            },
            None if tracing is None else tracing.request,
            transit.face(pipeline, (*api, *outside), shards.keys, stored_tenants.get, clock)
            if config.transit
            else None,
        ),
        key_clients=found.clients,
        approvals=all_approvals,
        audit_delivery=audit_delivery,
        billing=built_in,
        deletions=deletions,
        mail_delivery=mail_delivery,
        notice_checks=notice_checks,
        webhook_delivery=webhook_delivery,
        last_uses=last_uses,
        observer=observer,
        connections=connections,
        management=management,
        link=found.link,
        audit_streams=audit_streams,
        witness_carriers=tuple(map(WitnessCarrier, found.clients.values())),
        close=partial(
            _close,
            passwords,
            account,
            clients,
            rate_limiter,
            engine,
            tracing,
        ),
    )


async def _open_accounts(config: Config, pepper: Pepper) -> AsyncEngine:
    """Open the accounts database; restart the process after a migration. Raises ConfigError."""
    engine = await open_database(
        config.database.location, config.database_password_file, pepper=pepper
    )
    if is_to_begin_again("pqkeep_gateway"):
        await engine.dispose()
        begin_again()
    return engine


async def _is_healthy(key_clients: Iterable[KeyClient], readiness: Readiness) -> bool:
    """Return whether requests can be served, after a fresh check of the key services."""
    is_reachable = any(await asyncio.gather(*(client.is_reachable() for client in key_clients)))
    return is_reachable and not await readiness.reasons()


async def _find_installation(inspection: Inspection, clock: Clock) -> Found:
    """Return what the rules for operators find."""
    return findings(await inspection.inspect(), date_of(clock()))


def _observed(
    checks: NoticeChecks, observer: RequestObserver, last_uses: LastUses, clock: Clock
) -> NoticeChecks:
    """Let checks and last uses note the successes that concern them."""

    def succeeded(route: Route, principal: Principal) -> None:
        if (
            isinstance(principal, ApiKeyPrincipal)
            and principal.api_key_version
            and route.administers
        ):
            last_uses.note_administration(principal.tenant, principal.api_key_version, clock())
        if principal.tenant is not None and route.is_cause:
            checks.note(principal.tenant)

    observer.succeeded = succeeded
    return checks


async def _tell_owners(engine: AsyncEngine, clock: Clock, tenant: TenantId, about: str) -> None:
    """Store a mail to a tenant's owners about a change that has already taken effect."""
    try:
        await SqlMailOutbox(engine).tell_owners(tenant, about, date_of(clock()))
    except UnavailableError:
        _LOG.error("owners are not told what is going to be destroyed", tenant=str(tenant))


async def _close(
    passwords: Passwords,
    account: "StripeAccount | None",
    providers: Iterable[OpenIdProvider],
    rate_limiter: RateLimiter,
    engine: AsyncEngine,
    tracing: "Tracing | None",
) -> None:
    passwords.close()
    for provider in providers:
        provider.close()
    if account is not None:
        account.close()
    await rate_limiter.close()
    await close_database(engine)
    if tracing is not None:
        await asyncio.to_thread(tracing.close)


def _relying_party(config: Config, here: str) -> RelyingParty | str:
    return relying_party(config.pages_url, here, is_development=config.cookies == "loopback")


def _operator_digest(config: Config) -> bytes | None:
    return None if config.operator_digest is None else bytes.fromhex(config.operator_digest)


def _provider_clients(config: Config) -> Sequence[OpenIdProvider]:
    """Return a client for each single sign-on provider. Raises ConfigError."""
    return [
        OpenIdProvider(_provider(provider), _client_secret(provider), provider.ca_file)
        for provider in config.single_sign_on
    ]


def _sign_ons(
    clients: Iterable[OpenIdProvider],
    store: SqlIdentities,
    sessions: Sessions,
    operator_sessions: OperatorSessions,
    pepper: Pepper,
    audit_delivery: AuditDelivery,
    clock: Clock,
) -> Sequence[SingleSignOn | OperatorSignOn]:
    budget, found = SourceBudget(BEGINNINGS, clock), list[SingleSignOn | OperatorSignOn]()
    for client in clients:
        provider, requests = client.provider, ProviderRequests(client.metadata, client.exchange)
        shared = (budget, pepper, audit_delivery, clock)
        if provider.operator_roles:
            found.append(OperatorSignOn(provider, requests, operator_sessions, *shared))
        else:
            found.append(SingleSignOn(provider, requests, store, sessions, *shared))
    return found


def _provider(settings: SingleSignOnSettings) -> Provider:
    return Provider(
        name=settings.name,
        label=settings.label,
        tenant=INSTALLATION if settings.tenant is None else TenantId(settings.tenant),
        issuer=settings.issuer,
        client_id=settings.client_id,
        scopes=settings.scopes,
        groups_claim=settings.groups_claim,
        roles={group: Role(role) for group, role in settings.roles.items()},
        default_role=None if settings.default_role is None else Role(settings.default_role),
        creates_members=settings.create_members,
        email_domains=frozenset(domain.lower() for domain in settings.email_domains),
        operator_roles={
            group: OperatorRole(role) for group, role in settings.operator_roles.items()
        },
    )


def _client_secret(settings: SingleSignOnSettings) -> str | None:
    if settings.client_secret_file is None:
        return None
    return read_secret_text(settings.client_secret_file, "client secret for single sign-on")


def _tracing(settings: OpenTelemetry) -> "Tracing":
    try:
        from pqkeep_gateway.tracing import Tracing  # noqa: PLC0415 - an extra
    except ImportError:
        raise _without_extra("opentelemetry") from None
    return Tracing(settings)


def _connections(limits: ConnectionLimits, proxies: TrustedProxies) -> Connections:
    arrivals = SourceBudget(Limit(limits.new_per_second, 1), time.monotonic)
    return Connections(limits.connections, limits.per_address, arrivals, proxies)


def _management(
    config: Config,
    engine: AsyncEngine,
    rate_limiter: RateLimiter,
    mail_delivery: MailDelivery,
    all_operators: Operators,
    sources: Sources,
    shards: Shards,
) -> Management:
    readiness = Readiness(
        sources.key_services,
        sources.shards,
        {
            ACCOUNTS_DATABASE: partial(monitoring.check, engine),
            RATE_LIMITS: rate_limiter.check,
        },
        partial(monitoring.require_open_log, engine),
        lambda: mail_delivery.is_deferred,
        bearable={RATE_LIMITS} if config.rate_limit_unavailable == "local" else set(),
    )
    collection = Collection(sources, readiness)
    app = management_app(readiness, collection, config.management_hosts)
    inspection = Inspection(
        readiness,
        sources,
        partial(monitoring.find_accounts, engine),
        all_operators,
        shards,
        _mail_mode(config),
    )
    return Management(app, readiness, collection, inspection)


def _mail_mode(config: Config) -> MailMode:
    if config.smtp is not None:
        return MailMode.SMTP
    return MailMode.DISABLED if config.mailbox is None else MailMode.FOLDER


@dataclass(frozen=True, slots=True)
class _KeyServices:
    clients: Mapping[str, KeyClient]
    link: LinkTls | None
    directory: SqlShards
    departures: Departures | None
    """The departed tenants. None with one shard."""
    shards: Shards


async def _key_services(config: Config, engine: AsyncEngine, clock: Clock) -> _KeyServices:
    """Return the shards' clients, the choice between them, and TLS to other hosts."""
    link = config.link
    tls = None if link is None else _link_tls(link)
    directory, departures = SqlShards(engine), Departures()
    clients = {
        shard: KeyClient(
            *_addresses(address, link, tls), shard=shard, claim=directory.claim_database
        )
        for shard, address in config.key_services.items()
    }
    await directory.add(tuple(clients), date_of(clock()))
    shards = Shards(clients, directory, departures)
    has_several = len(clients) > 1
    return _KeyServices(clients, tls, directory, departures if has_several else None, shards)


def _link_tls(link: Link) -> LinkTls:
    return LinkTls(
        Identity(LinkRole.GATEWAY, link.certificate, link.key, link.ca, link.require_post_quantum)
    )


def _addresses(shard: Shard, link: Link | None, tls: LinkTls | None) -> Iterator[KeyServiceAddress]:
    yield from (UnixSocket(str(path)) for path in shard.sockets)
    if link is not None and tls is not None:
        yield from (
            RemoteHost(address, link.name or address.host, tls) for address in shard.addresses
        )


async def migrate_database(config: Config) -> None:
    """Update the accounts database to this version's schema, like a start.

    Raises ConfigError, UnavailableError.
    """
    engine = await open_database(config.database.location, config.database_password_file)
    await close_database(engine)


async def list_refused_events(
    config: Config, *, acknowledged: bool = False, acknowledges: bool = False
) -> tuple[RefusedEvent, ...]:
    """Return the events that the audit log refused. Raises ConfigError, UnavailableError.

    ``acknowledged``: include acknowledged events. ``acknowledges``: acknowledge the returned
    events.
    """
    engine = await open_database(config.database.location, config.database_password_file)
    try:
        outbox = SqlAuditOutbox(engine)
        found = await outbox.list_refused(acknowledged=acknowledged)
        if acknowledges and found:
            acknowledgement = event(
                Attribution("", "pqkeepd", ""),
                INSTALLATION,
                AuditEvent.ACKNOWLEDGE_EVENTS,
                policy=f"events-{len(found)}",
            )
            await outbox.acknowledge_refused([refused.id for refused in found], acknowledgement)
        return found
    finally:
        await close_database(engine)


async def list_forged_tenants(config: Config) -> Sequence[TenantId]:
    """Return the tenants with a row that no gateway wrote. Raises ConfigError, UnavailableError."""
    engine = await open_database(
        config.database.location,
        config.database_password_file,
        pepper=read_pepper(config.pepper_file),
    )
    try:
        return await SqlTenants(engine).list_forged()
    finally:
        await close_database(engine)


async def send_test_mail(config: Config, to: str) -> None:
    """Send a message by the mail server in the settings, or write it to the mailbox.

    Raises ConfigError, MailDeferredError, MailRejectedError.
    """
    mailer = _mailer(config)
    if isinstance(mailer, DisabledMailer):
        raise ConfigError("smtp: it is not in the settings, so no mail is sent")
    if not is_email(to):
        raise ConfigError(f"{to} is not an e-mail address")
    mail = new_mail(MailKind.OPERATOR_NOTICES, to, datetime.now(UTC))
    message = EmailMessage()
    message["From"], message["To"] = mailer.sender, to
    message["Subject"] = "pqkeep: test of mail delivery"
    message["Date"], message["Message-ID"] = formatdate(), f"<{mail.id}@pqkeep>"
    message.set_content("This message shows that the gateway's mail settings work.\n")
    await mailer.send(mail, message)


@asynccontextmanager
async def open_operators(config: Config) -> AsyncIterator[Operators]:
    """Open the operators of an installation, even while its gateways run.

    Raises ConfigError, UnavailableError.
    """
    pepper = read_pepper(config.pepper_file)
    engine = await open_database(
        config.database.location, config.database_password_file, pepper=pepper
    )
    try:
        yield Operators(SqlOperators(engine), pepper)
    finally:
        await close_database(engine)


@asynccontextmanager
async def open_placements(config: Config) -> AsyncIterator[SqlShards]:
    """Open the placements of tenants in shards, even while gateways run.

    Raises ConfigError, UnavailableError.
    """
    engine = await open_database(config.database.location, config.database_password_file)
    try:
        yield SqlShards(engine)
    finally:
        await close_database(engine)


def _audit_streams(
    config: Config, engine: AsyncEngine, key_clients: Mapping[str, KeyClient], clock: Clock
) -> Mapping[str, AuditStream]:
    """Return a stream of each shard's log to the sink; empty without a sink."""
    address = config.audit_sink
    if address is None:
        return {}
    is_one = len(key_clients) == 1
    return {
        shard: AuditStream(
            SqlCursors(engine),
            address if shard == DEFAULT_SHARD else f"{address}#{shard}",
            _sink(config, address),
            client,
            clock,
            shard=None if is_one else shard,
        )
        for shard, client in key_clients.items()
    }


def _sink(config: Config, address: str) -> Sink:
    parts = urlsplit(address)
    match parts.scheme:
        case "file":
            return FileSink(Path(parts.path))
        case "syslog+unix":
            return DatagramSyslog(parts.path)
        case "syslog+udp":
            return DatagramSyslog((str(parts.hostname), int(parts.port or 0)))
        case "syslog+tcp" | "syslog+tls":
            tls = trusting(config.audit_sink_ca_file) if parts.scheme == "syslog+tls" else None
            return StreamSyslog((str(parts.hostname), int(parts.port or 0)), tls)
        case _:
            return HttpCollector(address, config.audit_sink_token_file, config.audit_sink_ca_file)


def _mailer(config: Config) -> Mailer:
    if config.smtp is None:
        return DisabledMailer() if config.mailbox is None else Mailbox(config.mailbox)
    from pqkeep_gateway.delivery.smtp import SmtpMailer  # noqa: PLC0415 - slow; most need none

    return SmtpMailer(config.smtp)


async def _rate_limiter(config: Config, clock: Clock) -> RateLimiter:
    if config.redis_url is None:
        return MemoryRateLimiter(clock)
    rate_limiter = _redis_rate_limiter(config, config.redis_url, clock)
    await rate_limiter.open()
    if config.rate_limit_unavailable == "refuse" or config.rate_limit_gateways is None:
        return rate_limiter
    return LocalShares(rate_limiter, config.rate_limit_gateways, clock)


async def list_rate_limit_problems(config: Config) -> Sequence[str]:
    """Return the problems of the server in redis_url. Raises ConfigError."""
    if config.redis_url is None:
        return ()
    rate_limiter = _redis_rate_limiter(config, config.redis_url, steady_clock())
    try:
        return await rate_limiter.diagnose()
    finally:
        await rate_limiter.close()


def _redis_rate_limiter(config: Config, url: str, clock: Clock) -> "RedisRateLimiter":
    from pqkeep_gateway.storage.redis_rate_limiter import RedisRateLimiter  # noqa: PLC0415 - slow; most need none

    return RedisRateLimiter(
        url,
        config.redis_password_file,
        clock,
        sentinel_password_file=config.redis_sentinel_password_file,
    )


def _sales(
    account: "StripeAccount | None",
    terms: Plans,
    engine: AsyncEngine,
    quotas: Quotas,
    announce_change: Callable[[], Awaitable[None]],
    audit_delivery: AuditDelivery,
    clock: Clock,
    *,
    self_service: bool,
) -> tuple[tuple[Endpoint, ...], BuiltInBilling]:
    """Return the billing endpoints, and the built-in provider that ends and renews contracts."""
    store = SqlBilling(engine)
    prices = {tier: 100 * term.monthly_price_usd for tier, term in terms.items()}
    sold = frozenset(
        tier
        for tier, term in terms.items()
        if self_service and term.self_service and tier is not Tier.FREE
    )
    built_in = BuiltInBilling(store, prices, sold, announce_change, audit_delivery, clock)
    if account is None:
        return billing.endpoints(terms, built_in, store, quotas), built_in
    by_stripe = StripeBilling(
        account, store, SqlTenants(engine), built_in, announce_change, audit_delivery, clock
    )
    rows = billing.endpoints(terms, by_stripe, store, quotas)
    return (*rows, *billing.notices(by_stripe)), built_in


def _stripe_account(settings: StripeSettings) -> "StripeAccount":
    try:
        from pqkeep_gateway.payments.stripe_account import StripeAccount  # noqa: PLC0415 - an extra
    except ImportError:
        raise _without_extra("stripe") from None
    return StripeAccount(settings)


def _without_extra(name: str) -> ConfigError:
    """Return the error for a table of the settings with an extra that is not installed."""
    wheel = f"pqkeep_gateway-{metadata.version('pqkeep-gateway')}-py3-none-any.whl"
    return ConfigError(
        f"[{name}] in the settings needs an extra that is not installed: in the folder of the wheels"
        f" run pip install './{wheel}[{name}]'"
    )
