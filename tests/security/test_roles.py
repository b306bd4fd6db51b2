"""What a pilot, or anyone with its token, can do to others: nothing. Each attack here once worked."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilot import __version__
from pilot.core.errors import UserError
from pilot.host.printable import all_printable, printable
from pilot.protocol import connection, wire
from pilot.protocol.connection import Connection, life_name, load, owns
from pilot.protocol.pool_client import request
from pilot.service.agents.admission import Admission, Grant, Living, Role
from tests.integration.live_pool import DEADLINE_S, Peer, Pool, form, pool, until, warm
from tests.streams import Stream

HUGE = [2**53 + 1, 2**63, 2**64 - 1, -1, -(2**63)]
ODD = [5e-324, 1e-300, 1e300, math.inf, -math.inf, math.nan, -1.0, -5e-324]
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt"


def refused(live: Pool, pilot: str, **changes: Any) -> str:
    """Why such a pilot is not admitted."""
    return Peer(live.file, pilot, **changes).hears(wire.Refused).reason


# --- roles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["submit", "status", "down", "list", "cancel"])
def test_a_pilots_token_makes_no_requests(live: Pool, tmp_path: Path, verb: str) -> None:
    where = load(live.file)
    connection.write(tmp_path / "c.json", msgspec.structs.replace(where, token=where.enrolment))
    with pytest.raises(UserError, match="not a message"):
        request(tmp_path / "c.json", verb, {}, DEADLINE_S)
    assert not live.client.status().draining


def test_a_users_token_joins_no_pool(live: Pool) -> None:
    before = live.nodes()
    assert "not a message" in refused(live, "user", token=load(live.file).token)
    assert live.nodes() == before


@pytest.mark.parametrize("token", ["", "x", "\x00", "x" * 3000, "é" * 500])
def test_a_guessed_token_is_refused_before_anything_else_is_read(live: Pool, token: str) -> None:
    assert "wrong token" in refused(live, "guess", token=token)


# --- names and jobs --------------------------------------------------------------------------------------------------


def test_a_living_nodes_name_is_not_taken_over(live: Pool) -> None:
    victim = Peer(live.file, "victim").welcomed()
    thief = Peer(live.file, victim.node.partition(".")[2], proven=False, secret="not the victim's")
    assert "is another pilot's" in thief.hears(wire.Refused).reason
    victim.say(wire.Heartbeat(1.0))
    assert wire.decode_at_agent(victim.socket.recv()) == wire.HeartbeatSeen(1.0)
    assert victim.node in live.nodes()
    victim.die()


def test_claiming_a_job_with_a_higher_restart_count_evicts_nobody(live: Pool) -> None:
    victim = Peer(live.file, "requeued", job="4711", restart=0).welcomed()
    thief = Peer(live.file, "claimant", job="4711", restart=9).welcomed()
    until(lambda: {victim.node, thief.node} <= set(live.nodes()))
    assert not victim.has_news(0.5)
    victim.die()
    thief.die()


def test_one_connection_is_one_pilot(live: Pool) -> None:
    peer = Peer(live.file, "first").welcomed()
    peer.say(msgspec.structs.replace(peer.hello, pilot=f"second-{life_name('s')}", secret="s"))
    assert "this connection is that of" in peer.hears(wire.Refused).reason
    peer.die()


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "localhost; rm -rf /"},
        {"address": "$(reboot)"},
        {"address": "0.0.0.0"},
        {"job": "1\x1b[2J"},
        {"job": "x" * 300},
        {"restart": 2**60},
        {"pid": -1},
        {"memory_gb": math.nan},
        {"accelerator": "x" * 65},
        {"walltime_s": math.nan},
        {"workers": [("t", 2**64 - 1, 0, True)]},
        {"workers": [("t", -1, 0, True)]},
    ],
    ids=str,
)
def test_a_hello_that_is_no_pilots_is_refused(live: Pool, changes: dict[str, Any]) -> None:
    assert refused(live, "odd", **changes)
    assert "Traceback" not in live.log()


# --- the jobs' own tokens --------------------------------------------------------------------------------------------

WHERE = Connection("tcp://127.0.0.1:1", "0" * 64, "user", "enrolment", "pool", "0")


def hello(job: str, restart: int = 0, secret: str = "s", name: str = "") -> wire.Hello:
    return wire.Hello(name or f"p-{life_name(secret)}", secret, "h", "127.0.0.1", 1, job=job, restart=restart)


def issued(admission: Admission, job: str = "") -> tuple[Path, Grant]:
    path = admission.issue()
    if job:
        admission.bind(path, job)
    grant = admission.grant(load(path).enrolment)
    assert grant is not None
    return path, grant


def test_a_jobs_token_is_private_and_bound_to_its_job(tmp_path: Path) -> None:
    admission = Admission(WHERE, tmp_path, 1)
    path, grant = issued(admission, "12")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (load(path).token, load(path).job) == ("", "12")
    assert grant.role is Role.PILOT
    assert admission.objection(grant, hello("12"), []) == ""
    assert admission.objection(grant, hello("12.server.domain"), []) == ""
    assert "is that of job 12" in admission.objection(grant, hello("13"), [])
    assert "is that of job 12" in admission.objection(grant, hello(""), [])


def test_it_keeps_the_type_of_its_queue_through_a_restart(tmp_path: Path) -> None:
    path = Admission(WHERE, tmp_path, 1).issue("a100")
    grant = Admission(WHERE, tmp_path, 1).grant(load(path).enrolment)
    assert grant is not None
    assert grant.node_type == "a100"


def test_a_second_living_pilot_with_it_is_refused_unless_the_job_lives_again(tmp_path: Path) -> None:
    admission = Admission(WHERE, tmp_path, 1)
    _, grant = issued(admission, "12")
    assert "has its 1 pilots already" in admission.objection(grant, hello("12"), [Living("h.a", 0)])
    assert admission.objection(grant, hello("12", restart=1), [Living("h.a", 0)]) == ""
    assert admission.objection(grant, hello("13", restart=1), [Living("h.a", 0)])
    wide = Admission(WHERE, tmp_path / "wide", 2)
    wide.folder.mkdir()
    _, grant = issued(wide, "12")
    assert wide.objection(grant, hello("12"), [Living("h.a", 0)]) == ""


def test_the_enrolment_token_cannot_name_a_job_that_the_pool_submitted(tmp_path: Path) -> None:
    admission = Admission(WHERE, tmp_path, 1)
    issued(admission, "12")
    enrolment = admission.grant("enrolment")
    assert enrolment is not None
    assert "has a token of its own" in admission.objection(enrolment, hello("12", restart=9), [])
    assert admission.objection(enrolment, hello("55"), []) == ""


def test_a_token_whose_submission_seemed_to_fail_is_the_first_ones_that_comes(tmp_path: Path) -> None:
    admission = Admission(WHERE, tmp_path, 1)
    path, grant = issued(admission)
    assert admission.objection(grant, hello("12"), []) == ""
    admission.settled()
    assert load(path).job == "12"
    assert "is that of job 12" in admission.objection(grant, hello("13"), [])


def test_tokens_outlive_the_coordinator_and_end_with_their_job(tmp_path: Path) -> None:
    path, _ = issued(Admission(WHERE, tmp_path, 1), "12")
    token = load(path).enrolment
    again = Admission(WHERE, tmp_path, 1)
    known = again.grant(token)
    assert known is not None
    assert "is that of job 12" in again.objection(known, hello("13"), [])
    again.revoke("12")
    assert again.grant(token) is None
    again.settled()
    assert not path.exists()
    assert Admission(WHERE, tmp_path, 1).grant(token) is None


def test_a_job_learns_where_the_coordinator_is_now_and_one_that_waits_for_an_earlier_pool_comes_to_this_one(
    tmp_path: Path,
) -> None:
    path, _ = issued(Admission(WHERE, tmp_path, 1), "12")
    token = load(path).enrolment
    moved = msgspec.structs.replace(WHERE, endpoint="tcp://127.0.0.1:2", coordinator="another", certificate="1" * 64)
    again = Admission(moved, tmp_path, 1)
    assert load(path) == msgspec.structs.replace(moved, token="", enrolment=token, job="12")
    known = again.grant(token)
    assert known is not None
    assert again.objection(known, hello("12"), []) == ""


def test_files_of_submissions_that_failed_do_not_pile_up(tmp_path: Path) -> None:
    admission = Admission(WHERE, tmp_path, 1)
    kept = issued(admission, "12")[0]
    for _ in range(100):
        admission.issue()
    admission.settled()
    assert len(list(tmp_path.iterdir())) <= 65
    assert kept.exists()
    admission.revoke_all()
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_only_its_secrets() -> None:
    assert owns("s", f"pilot-0-{life_name('s')}")
    for name in ("", "pilot-0-", f"pilot-0-{life_name('t')}", life_name("s")[:-1], f"{life_name('s')}-x"):
        assert not owns("s", name)


# --- what a pilot says -----------------------------------------------------------------------------------------------


def test_odd_numbers_kill_neither_the_coordinator_nor_its_restart(tmp_path: Path) -> None:
    with pool(tmp_path) as live:
        peer = Peer(live.file, "odd").welcomed()
        trainer = live.submit(name="a", max_nodes=1)
        warm(peer, trainer)
        generation = form([peer], trainer)
        outcomes = {"accepted": 0, "refused": 0}
        for value in ODD:
            peer.say(wire.Progress(trainer, generation, 1, 0, 10, value, value, value, metrics={"loss": value}))
            outcomes["accepted"] += 1
        until(lambda: live.trainer(trainer).step == 1)
        assert live.trainer(trainer).measured_samples_per_s == {}
        for number, value in enumerate(HUGE):
            stranger = Peer(live.file, f"huge{number}").welcomed()
            stranger.say(wire.Progress(trainer, generation, value, 0, value))
            assert "not a message" in stranger.hears(wire.Refused).reason
            outcomes["refused"] += 1
            stranger.die()
        assert outcomes == {"accepted": len(ODD), "refused": len(HUGE)}
        assert live.client.status().trainers[0].trainer == trainer
        live.kill()
        live.up()
        assert live.trainer(trainer).step == 1
        assert "Traceback" not in live.log(), live.log()


def test_a_pilot_that_says_anything_at_all_ends_nobody_but_itself(live: Pool) -> None:
    trainer = live.submit(name="fuzzed", max_nodes=1)
    peer = Peer(live.file, "fuzzer0").welcomed()
    warm(peer, trainer)
    generation = form([peer], trainer)
    drawn, refusals, kinds = random.Random(7), 0, wire.FROM_AGENT
    end_s = time.monotonic() + 20
    for number in range(400):
        if time.monotonic() > end_s:
            break
        if peer.socket.closed(0.01):
            refusals += 1
            peer = Peer(live.file, f"fuzzer{number}").welcomed()
        peer.socket.send(any_message(drawn, drawn.choice(kinds), trainer, generation))
    assert not live.client.status().draining
    assert refusals > 0
    assert "Traceback" not in live.log()
    peer.die()


def any_message(drawn: random.Random, kind: type[wire.Message], trainer: str, generation: int) -> bytes:
    """A message of that kind whose fields are plausible, odd, or of another type."""
    fields: dict[str, Any] = {"type": kind.__name__}
    for field in msgspec.structs.fields(kind):
        likely = {"trainer": trainer, "generation": generation, "step": 1, "workers": [], "ledger": [], "metrics": {}}
        odd = [*HUGE, *ODD, "", ESCAPE, None, [], {}, True, [[1] * 6], {"a": 1.0}]
        fields[field.name] = likely.get(field.name, 1) if drawn.random() < 0.8 else drawn.choice(odd)
    return msgspec.msgpack.encode(fields)


def test_escapes_reach_no_terminal_and_begin_no_line_of_the_log(live: Pool) -> None:
    live.submit(name="shown", max_nodes=64)
    peer = Peer(live.file, "shown").welcomed()
    trainer = peer.hears(wire.StartWorker).trainer
    peer.say(wire.Remark(trainer, f"{ESCAPE}\n2026-01-01 00:00:00 CRITICAL forged"))
    until(lambda: live.trainer(trainer).remarks)
    shown = str(all_printable(live.trainer(trainer).remarks))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    log = live.log()
    assert "owned" in log
    assert "\x1b" not in log
    assert not any(line.startswith("2026-01-01") for line in log.splitlines())
    peer.die()


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\x9b", "\x00", "\r", "\u202e", "\u2066", "\ud800", "\u2028"])
def test_controls_are_shown_as_text(character: str) -> None:
    assert character not in printable(f"a{character}b")
    assert printable("tab\tand\nline, ü, 漢") == "tab\tand\nline, ü, 漢"


def test_a_large_message_of_a_pilot_ends_only_its_own_connection(live: Pool) -> None:
    other, large = Peer(live.file, "beside").welcomed(), Peer(live.file, "large").welcomed()
    large.say(wire.Remark("t", "x" * (2 << 20)))
    assert large.socket.closed()
    assert other.node in live.nodes()
    other.die()


def test_credentials_are_judged_alone(live: Pool) -> None:
    where = load(live.file)
    for frame in (b"", b"\xc1", wire.encode(wire.Heartbeat(0.0)), wire.encode(wire.Request("down"))):
        stream = Stream(where.address)
        stream.send(frame)
        assert isinstance(wire.decode_at_agent(stream.recv()), wire.Refused)
        assert stream.closed()
        stream.close()
    shown = wire.Credentials(wire.PROTOCOL, __version__, where.enrolment)
    stream = Stream(where.address)
    stream.send(wire.encode(shown))
    stream.send(wire.encode(shown))
    assert isinstance(wire.decode_at_agent(stream.recv()), wire.Refused)
    stream.close()
