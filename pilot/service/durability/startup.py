"""The start of a coordinator: with a new pool, or with one whose coordinator ended early."""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError, LostFileError, NoRestartError, UserError
from pilot.core.events import DrainRequested, PoolReopened
from pilot.core.version import __version__
from pilot.host.files import publish
from pilot.protocol import connection
from pilot.protocol.connection import Certificate, Connection, new_token
from pilot.rundir.heartbeat import since_boot_s
from pilot.rundir.journal import FORMAT, Configured, Contents, Header, read
from pilot.rundir.rundir import RunDir
from pilot.service.agents.server import PortInUse, Server
from pilot.service.durability.journal_writer import JournalWriter
from pilot.service.settings import Settings, core_of, settings_of
from pilot.site.addresses import advertise_address, bind_address
from pilot.site.site import Site

log = logging.getLogger(__name__)

_ANEW = "pilot up --fresh starts a new pool and keeps this one aside"


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """One pool's identity. ``contents`` is the journal from which it continues; None: it is new. ``header`` is its
    journal's header. ``reopened``: it was shut down, and comes up again. ``known``: its pilots know its certificate and
    tokens. ``lost``: why they do not, though they should, or why the pool that was here is not continued; else "".
    """

    header: Header
    token: str
    enrolment: str
    certificate: Certificate
    port: int
    contents: Contents | None = None
    reopened: bool = False
    known: bool = False
    lost: str = ""

    @classmethod
    def with_new_secrets(cls, header: Header, port: int, contents: Contents | None = None, **more: Any) -> Self:
        """A pool whose certificate and tokens nobody knows yet."""
        return cls(header, new_token(), new_token(), Certificate.make(), port, contents, **more)

    @property
    def name(self) -> str:
        """The pool's name, which never changes."""
        return self.header.coordinator

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return settings_of(self.header.configured[-1].settings)

    def start_s(self, zero_s: float | None) -> float:
        """The current time on its clock, which keeps running through a restart. ``zero_s`` is the time since this
        host's boot at which it was 0; None: unknown, so the system's clock must do.
        """
        if self.contents is None:
            return 0.0
        if zero_s is not None:
            return max(self.contents.last_s, since_boot_s() - zero_s)
        return max(self.contents.last_s, time.time() - self.contents.header.started_unix_s)

    def core(self) -> Coordinator:
        """A core as it was when the pool began."""
        return core_of(self.header)


def configured(site: Site, settings: Settings) -> Configured:
    """The configuration of a pool on ``site``, as stored in journals."""
    return Configured(msgspec.to_builtins(settings), msgspec.to_builtins(site))


def open_pool(
    rundir: RunDir, site: Site, settings: Settings, *, anew: bool = True, fresh: bool = False
) -> PoolIdentity:
    """The pool whose journal is in ``rundir``; a new one if there is none, or if ``fresh``.

    Without ``anew``, only a pool that was not shut down is continued.

    Raises
    ------
    UserError
        The journal has another format, or its header is damaged: nothing can be restored.
    NoRestartError
        There is none to continue, and ``anew`` is off.
    """
    if fresh and anew and (aside := rundir.set_aside()):
        log.info("started a new pool; the previous one is in %s", aside)
    now = configured(site, settings)
    lost = ""
    if rundir.journal.exists():
        try:
            contents = read(rundir.journal)
        except JournalError as error:
            raise UserError(f"{error}; {_ANEW}") from None
        if anew and not (contents.header.after or contents.last.entries or contents.last.odd):
            log.info("the pool that was here had no events; its journal is in %s", rundir.set_aside())
        elif not _was_drained(contents):
            pool = _earlier_pool(rundir, contents, site.port)
            if pool.settings != msgspec.structs.replace(settings, priors=pool.settings.priors):
                log.warning("this pool keeps the settings with which it was started: %s", pool.settings)
            return pool
        elif not anew:
            raise NoRestartError(f"the pool in {rundir.root} was shut down; pilot up continues its trainers")
        else:
            return _again(rundir, contents, now, site.port)
    elif anew and not fresh:
        lost = _lost_pool(rundir)
    if not anew:
        raise NoRestartError(f"there is no pool in {rundir.root} to continue; pilot up starts one")
    name = f"{site.name}-{secrets.token_hex(3)}"
    header = Header(FORMAT, __version__, name, time.time(), now.settings, now.site)
    return PoolIdentity.with_new_secrets(header, site.port, lost=lost)


def _lost_pool(rundir: RunDir) -> str:
    """A line about the remains of a pool whose journal is missing; "" if there was none. Closed segments are set aside,
    or they would be taken for the new pool's."""
    aside = rundir.set_aside()
    if aside is None and not (rundir.trainers.is_dir() and any(rundir.trainers.iterdir())):
        return ""
    rest = f"; the rest of it is in {aside}" if aside else ""
    return (
        f"the journal of the pool that was here, {rundir.journal}, is missing, so its trainers are not continued"
        f" (their files are in {rundir.trainers}; pilot submit --from starts from their checkpoints){rest}"
    )


def _was_drained(contents: Contents) -> bool:
    """Whether it was shut down and not restarted since; recorded in its journal's last segment."""
    drained = False
    for decision in contents.last.decisions:
        if isinstance(decision.event, DrainRequested | PoolReopened):
            drained = isinstance(decision.event, DrainRequested)
    return drained


def _again(rundir: RunDir, contents: Contents, now: Configured, port: int) -> PoolIdentity:
    """Restart a drained pool. If it was killed while draining, its pilots may still exist."""
    header = contents.header
    header = msgspec.structs.replace(header, reopened=[*header.reopened, now])
    if rundir.connection.exists() and rundir.server_key.exists():
        return replace(_earlier_pool(rundir, contents, port), header=header, reopened=True)
    return PoolIdentity.with_new_secrets(header, port, contents, reopened=True)


def _earlier_pool(rundir: RunDir, contents: Contents, port: int) -> PoolIdentity:
    """The pilots of that pool know its certificate and tokens, so these must not change, nor its address if possible.
    If they are lost, the trainers continue all the same, on ``port``: pilots that are still there save and leave.
    """
    try:
        known = connection.load(rundir.connection)
        certificate = Certificate.load(rundir.server_key)
        port = known.address[1]
    except LostFileError as error:
        return PoolIdentity.with_new_secrets(contents.header, port, contents, lost=str(error))
    except UserError as error:
        raise JournalError(f"cannot continue the pool in {rundir.root}: {error}; {_ANEW}") from None
    return PoolIdentity(contents.header, known.token, known.enrolment, certificate, port, contents, known=True)


def open_journal(rundir: RunDir, pool: PoolIdentity) -> JournalWriter:
    """The journal of ``pool``, ready to append to."""
    if pool.contents is not None:
        return JournalWriter.resume(rundir.journal, pool.contents)
    return JournalWriter.create(rundir.journal, pool.header)


def listen(pool: PoolIdentity, site: Site) -> Server:
    """The server of ``pool``, on its previous port if possible, so that nobody notices a restart.

    Raises
    ------
    UserError
        It cannot listen; for a new pool, also if the site's port is taken.
    """
    address = bind_address(site)
    try:
        return Server(pool.certificate, address, pool.port)
    except PortInUse:
        if pool.contents is None:
            raise
        server = Server(pool.certificate, address, 0)
        log.warning(
            "port %d is taken; using port %d, which pilots learn from the connection file", pool.port, server.port
        )
        return server


def announce(rundir: RunDir, pool: PoolIdentity, site: Site, site_file: Path, server: Server) -> Connection:
    """Write the files by which agents and the CLI find ``server``."""
    pool.certificate.save(rundir.server_key)
    if site_file != rundir.site:
        publish(rundir.site, site_file.read_bytes())
    host = advertise_address(site)
    endpoint = f"tcp://[{host}]:{server.port}" if ":" in host else f"tcp://{host}:{server.port}"
    pin = pool.certificate.fingerprint
    where = Connection(endpoint, pin, pool.token, pool.enrolment, pool.name, __version__)
    connection.write(rundir.connection, where)
    return where


def put_back(rundir: RunDir, pool: PoolIdentity, where: Connection) -> list[str]:
    """Write the connection file and the key again if somebody has removed or damaged them; returns the names of those
    written. May have to wait for the disk.
    """
    put: list[str] = []
    try:
        connection.load(rundir.connection)
    except LostFileError:
        connection.write(rundir.connection, where)
        put.append(rundir.connection.name)
    try:
        Certificate.load(rundir.server_key)
    except LostFileError:
        pool.certificate.save(rundir.server_key)
        put.append(rundir.server_key.name)
    return put


def withdraw(rundir: RunDir) -> None:
    """Remove the connection file and the key, because nobody listens any more."""
    for path in (rundir.connection, rundir.server_key):
        path.unlink(missing_ok=True)
