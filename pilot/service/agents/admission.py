"""Tokens and their rights: one token per role, and one per pilot job that the pool submitted.

=============  ==================================  ================================================================
token          where it is                         what it allows
=============  ==================================  ================================================================
user           the pool's ``connection.json``      requests of the CLI, nothing else
enrolment      the pool's ``connection.json``      to join as a pilot, from one's own batch script
a job's own    ``pilots/<…>.connection.json``      to join as a pilot of that job: on as many nodes as it has, in
                                                   its latest run, until the job is over
=============  ==================================  ================================================================

A pilot's name ends in a hash of a secret that its agent drew: nobody else can come back under that name. Only digests
of tokens are compared.
"""

from __future__ import annotations

import enum
import ipaddress
import logging
import math
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec

import msgspec

from pilot.core.errors import UserError
from pilot.protocol import connection, wire
from pilot.protocol.allowance import Allowance
from pilot.protocol.connection import Connection, digest, new_token, owns
from pilot.site.hostlist import NodePattern

_JOB = re.compile(r"[A-Za-z0-9_.@:\[\]-]{0,128}")

log = logging.getLogger(__name__)

SUFFIX = ".connection.json"

UNCLAIMED_MAX = 64
"""Tokens whose job is unknown: from submissions that failed but may have been accepted anyway."""

ENROLLING_MAX = 128
SPARE = 6
"""Connections and new pilots of one job beyond its nodes: agents that were cut off come back before that is noticed."""

JOINS_PER_S = 0.1
"""New pilots of one job, such as those of its restarts."""

P = ParamSpec("P")


class Role(enum.Enum):
    """The role that a token gives."""

    USER = "user"
    PILOT = "pilot"


@dataclass(slots=True, eq=False)
class Grant:
    """The rights of one token. ``file`` has a job's own token; ``job`` is "" until it is known. At most ``unnamed_max``
    connections may have shown it without being a pilot's yet; ``joins`` limits how often a pilot joins with it (None:
    no limit). ``node_type`` is that of the queue to which the job was submitted.
    """

    role: Role
    file: Path | None = None
    job: str = ""
    unnamed_max: int = ENROLLING_MAX
    joins: Allowance | None = None
    node_type: str = ""

    @classmethod
    def of_job(cls, file: Path, nodes: int, job: str = "", node_type: str = "") -> Grant:
        """A token of a job of so many nodes."""
        return cls(Role.PILOT, file, job, nodes + SPARE, Allowance(JOINS_PER_S, 2 * nodes + SPARE, 0.0), node_type)

    def may_join(self, now_s: float) -> bool:
        """Whether one more pilot may join with it now."""
        return self.joins is None or self.joins.allows(now_s)


@dataclass(frozen=True, slots=True)
class Living:
    """A connected pilot with the same token: its node, its job's life."""

    node: str
    restart: int


@dataclass(slots=True)
class Admission:
    """The tokens of one pool, and ``only`` which nodes it may have (None: any). ``folder`` holds the jobs' own
    connection files."""

    where: Connection
    folder: Path
    nodes_per_pilot: int
    only: NodePattern | None = None
    _grants: dict[bytes, Grant] = field(default_factory=dict)
    _disk: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "tokens"))

    def __post_init__(self) -> None:
        self._grants[digest(self.where.token)] = Grant(Role.USER)
        self._grants[digest(self.where.enrolment)] = Grant(Role.PILOT)
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            self._restore(path)

    def grant(self, token: str) -> Grant | None:
        """The grant of ``token``; None: it is not this pool's, or its job is over."""
        return self._grants.get(digest(token))

    # --- the jobs' own tokens --------------------------------------------------------------------------------------

    def issue(self, node_type: str = "") -> Path:
        """Create a connection file for another job, on nodes of this type. Called by the threads that submit."""
        token = new_token()
        path = self.folder / f"{new_token()[:12]}{SUFFIX}"
        connection.write(path, msgspec.structs.replace(self.where, token="", enrolment=token, node_type=node_type))
        self._grants[digest(token)] = Grant.of_job(path, self.nodes_per_pilot, "", node_type)
        self._forget_unclaimed()
        return path

    def bind(self, path: Path, job: str) -> None:
        """Record that the file was given to ``job``."""
        self._grants[digest(connection.load(path).enrolment)].job = job
        _note_job(path, job)

    def revoke(self, job: str) -> None:
        """``job`` is over: revoke its token."""
        self._drop(*(key for key, grant in self._of_jobs() if grant.job == job))

    def revoke_all(self) -> None:
        """The pool is over: remove all files."""
        self._drop(*(key for key, _ in self._of_jobs()))
        self._disk.shutdown()

    def _restore(self, path: Path) -> None:
        """Let a job of an earlier coordinator of this run directory keep its token, and give it our address.

        If that was another pool's coordinator, a job that is still queued joins us; an agent of that pool sees that its
        pool is over.
        """
        try:
            known = connection.load(path)
            own = {name: getattr(known, name) for name in ("enrolment", "job", "node_type")}
            where = msgspec.structs.replace(self.where, token="", **own)
            if where != known:
                connection.write(path, where)
        except (UserError, OSError) as error:
            log.warning("the pilots of %s cannot reconnect: %s", path.name, error)
            return
        self._grants[digest(where.enrolment)] = Grant.of_job(path, self.nodes_per_pilot, where.job, where.node_type)

    def _forget_unclaimed(self) -> None:
        self._drop(*[key for key, grant in self._of_jobs() if not grant.job][:-UNCLAIMED_MAX])

    def _of_jobs(self) -> list[tuple[bytes, Grant]]:
        return [(key, grant) for key, grant in list(self._grants.items()) if grant.file is not None]

    def _drop(self, *keys: bytes) -> None:
        for key in keys:
            grant = self._grants.pop(key, None)  # None: another thread, which submits too, has dropped it
            if grant is not None and grant.file is not None:
                self._later(_remove, grant.file)

    def _later(self, function: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> None:
        """Do it on the disk's thread, so that a slow disk delays nothing else."""
        try:
            self._disk.submit(function, *arguments, **named)
        except RuntimeError:  # the host's limit of threads is reached
            function(*arguments, **named)

    def settled(self) -> None:
        """Wait until all files are up to date."""
        self._disk.submit(int).result()

    # --- pilots ----------------------------------------------------------------------------------------------------

    def objection(self, grant: Grant, hello: wire.Hello, others: Sequence[Living]) -> str:
        """Why a pilot may not join; "" if it may. ``others`` are the connected pilots with the same token."""
        if not owns(hello.secret, hello.pilot):
            return f"the name {hello.pilot} is another pilot's"
        if reason := _implausible(hello):
            return reason
        if reason := self.elsewhere(hello):
            return reason
        if grant.file is None:
            return self._enrolling(hello)
        if not grant.job:
            self._claim(grant, hello.job)
        if not same_job(hello.job, grant.job):
            return f"its token is that of job {grant.job}, not of {hello.job or 'no job'}"
        living = [other for other in others if other.restart >= hello.restart]
        if len(living) >= self.nodes_per_pilot:
            return f"job {grant.job} has its {self.nodes_per_pilot} pilots already: {living[0].node}"
        return ""

    def elsewhere(self, hello: wire.Hello) -> str:
        """Why the pool does not use the node of ``hello``; "" if it may."""
        if self.only is None or self.only.matches(hello.host):
            return ""
        return f"node {hello.host} does not belong to this pool (--only-nodes {self.only.text})"

    def _enrolling(self, hello: wire.Hello) -> str:
        if hello.job and any(same_job(grant.job, hello.job) for _, grant in self._of_jobs()):
            return f"job {hello.job} was submitted by the pool and has a token of its own"
        return ""

    def _claim(self, grant: Grant, job: str) -> None:
        """The submission seemed to fail, or its answer is still outstanding: the first pilot to join determines the
        job."""
        if job and grant.file is not None:
            grant.job = job
            self._later(_note_job, grant.file, job)


def _note_job(path: Path, job: str) -> None:
    """For a restarted coordinator."""
    try:
        connection.write(path, msgspec.structs.replace(connection.load(path), job=job))
    except (OSError, UserError) as error:
        log.warning("cannot record in %s that it belongs to job %s: %s", path, job, error)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error)


def _implausible(hello: wire.Hello) -> str:
    """Why facts about a pilot, which are logged and passed on to others, are invalid; "" if they are valid."""
    try:
        if ipaddress.ip_address(hello.address).is_unspecified:
            return f"no node has the address {hello.address}"
    except ValueError:
        return f"not an address: {hello.address[:80]!r}"
    if not _JOB.fullmatch(hello.job):
        return f"not a batch job's id: {hello.job[:80]!r}"
    if hello.walltime_s is not None and not math.isfinite(hello.walltime_s):
        return f"not a time: {hello.walltime_s}"
    return ""


def same_job(one: str, other: str) -> bool:
    """Whether two ids name the same job: PBS gives an id with its server's name, longer or shorter."""
    return bool(one) and one.partition(".")[0] == other.partition(".")[0]
