"""A coordinator that was killed continues where its journal ends, and its pilots come back to it."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pilot import __version__
from pilot.cli.main import run
from pilot.core.commands import DissolveGroup, ReleaseNode, StopWorker
from pilot.core.errors import PilotError
from pilot.protocol import wire
from pilot.protocol.connection import load
from pilot.rundir import heartbeat, segments
from pilot.rundir.journal import read, replay
from pilot.rundir.rundir import Ended, read_end
from pilot.service.settings import fresh_core
from tests.integration.live_pool import DEADLINE_S, Peer, Pool, back, form, pool, settings, until, warm


def is_asked(live: Pool) -> bool:
    """Whether a request of ours is in the coordinator."""
    connections = psutil.Process(os.getpid()).net_connections("tcp")
    return any(one.status == psutil.CONN_ESTABLISHED for one in connections) and bool(live.client.status())


def test_a_request_that_changes_nothing_is_asked_again_of_the_restarted_coordinator(live: Pool) -> None:
    trainer = live.submit(name="a", max_nodes=1)
    with ThreadPoolExecutor(1) as thread:
        phases = thread.submit(live.client.wait, [trainer], DEADLINE_S)
        until(lambda: is_asked(live))
        live.restart()
        live.client.cancel(trainer)
        assert phases.result(DEADLINE_S).trainers == {trainer: "cancelled"}


def test_training_goes_on_no_trainer_restarts_and_the_clock_rises(live: Pool) -> None:
    trainer, peers = live.running(2)
    before, where = live.client.status(), load(live.file)
    live.restart()
    assert load(live.file) == where
    peers = [back(live, peer, trainer, 1, 50) for peer in peers]
    peers[0].say(wire.Progress(trainer, 1, 60, 0, 600))
    seen = until(lambda: (t := live.trainer(trainer)).step == 60 and t)
    assert (seen.phase, seen.generation, seen.losses) == ("running", 1, 0)
    after = live.client.status()
    assert after.now_s > before.now_s
    assert any("restarted" in text for text in after.remarks)
    peers[0].say(wire.TrainerFinished(trainer, 1, 61, 610))
    for peer in peers:
        assert peer.hears(StopWorker).reason == "finished"
    live.replays()


def test_what_was_under_way_is_done_again_after_each_restart(live: Pool) -> None:
    [peer] = live.joined(1)
    trainer = live.submit(name="a", max_nodes=1)
    assert peer.hears(wire.StartWorker).trainer == trainer
    live.restart()
    peer.die()
    peer = Peer(live.file, peer.secret, peer.host).welcomed()
    assert peer.hears(wire.StartWorker).trainer == trainer, "an order that was not answered is given again"
    live.restart()
    peer = back(live, peer, trainer, 0, 0)
    assert peer.hears(wire.JoinGroup).generation == 1, "its worker became warm meanwhile"
    live.restart()
    peer = back(live, peer, trainer, 0, 0)
    assert peer.hears(DissolveGroup).generation == 1, "the group was forming"
    assert form([peer], trainer, resumed=0) == 2
    until(lambda: live.trainer(trainer).phase == "running")
    live.restart()
    peer = back(live, peer, trainer, 0, 50)
    assert peer.hears(DissolveGroup).generation == 2, "the group broke meanwhile"
    assert form([peer], trainer, step=50) == 3


def test_a_pilot_that_died_meanwhile_is_lost_and_its_survivor_goes_on(tmp_path: Path) -> None:
    with pool(tmp_path, silent_s=8) as live:
        trainer, peers = live.running(2)
        peers[1].die()
        live.restart()
        peer = back(live, peers[0], trainer, 1, 50)

        def regroups() -> bool:
            peer.say(wire.Heartbeat(0.0))
            return peer.has_news(0.1)

        until(regroups)
        assert peer.hears(DissolveGroup).reason == "a member was lost"
        assert form([peer], trainer, step=50) == 2


def test_what_runs_on_a_pilot_and_nobody_needs_is_ended(live: Pool) -> None:
    peer = Peer(live.file, "p", "n", workers=[("forgotten", "", 3, 9, True)]).welcomed()
    assert peer.hears(StopWorker).trainer == "forgotten"


def test_a_journal_that_is_cut_off_is_taken_up_with_a_warning(live: Pool) -> None:
    trainer, peers = live.running(1)
    live.kill()
    journal = live.run_dir / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"seq": 99, "now')
    live.up()
    assert "skipped the last line, which was cut off" in live.log()
    peer = back(live, peers[0], trainer, 1, 5)
    peer.say(wire.Progress(trainer, 1, 6, 0, 60))
    until(lambda: live.trainer(trainer).step == 6)
    live.replays()


def test_a_damaged_line_is_left_out_with_a_remark_and_the_file_is_kept(live: Pool) -> None:
    trainer, peers = live.running(1)
    journal = live.run_dir / "journal.jsonl"
    until(lambda: b'"PlanReady"' in journal.read_bytes())  # it trains before the plan for its batch is made
    live.submit(name="b", min_nodes=50)
    live.kill()
    lines = journal.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b'"PlanReady"' in line)
    damaged = b"".join([*lines[:at], b"damage\n", *lines[at + 1 :]])
    journal.write_bytes(damaged)
    live.up()
    told = f"entry {at} of the journal is missing: {journal}:{at + 1}: damaged"
    status = live.client.status()
    assert told in live.log()
    assert told in status.remarks
    assert told in status.damage
    until(lambda: read(journal).header.after > 0)
    (closed,) = segments.closed(journal, 10**6)
    assert gzip.decompress(closed.read_bytes()).startswith(damaged)
    peer = back(live, peers[0], trainer, 1, 5)
    live.restart()
    assert live.client.status().damage == [], "it is not read again"
    back(live, peer, trainer, 1, 5)
    assert live.trainer(trainer).trainer == trainer


BLOCK = 4096


def saved(live: Pool, trainer: str, *names: str) -> None:
    """Files with these names are among the trainer's checkpoints."""
    for name in names:
        (live.run_dir / "trainers" / trainer / "checkpoints" / name).touch()


def test_a_zeroed_block_costs_what_is_in_it_and_no_trainer_and_no_generation_comes_back(live: Pool) -> None:
    """Trainers that were submitted after the block are there, one whose submission was in it is named, and generations
    that were granted in it are not granted again."""
    journal = live.run_dir / "journal.jsonl"
    trainer, peers = live.running(1)
    begun = journal.stat().st_size
    peers[0].say(wire.GroupBroken(trainer, 1, "it broke"))
    assert peers[0].hears(DissolveGroup).generation == 1
    assert form(peers, trainer, step=9) == 2
    lost = live.submit(name="unlucky", min_nodes=50)
    until(lambda: live.trainer(trainer).generation == 2)
    while journal.stat().st_size < begun + 2 * BLOCK:
        live.submit(name=f"more{journal.stat().st_size}", min_nodes=50)
    after = live.submit(name="later", min_nodes=50)
    saved(live, trainer, "g000005-s00000070.h5", ".g000006-s00000080.h5.7-7@host.tmp")
    live.kill()
    data = journal.read_bytes()
    end = begun + BLOCK
    assert data.index(b'"unlucky"') < end < data.index(b'"later"')
    journal.write_bytes(data[:begun] + bytes(BLOCK) + data[end:])
    live.up()
    status = live.client.status()
    known = [t.trainer for t in status.trainers]
    assert {trainer, after} <= set(known)
    assert lost not in known
    missing, *others = status.damage
    assert " of the journal are missing: " in missing
    assert any(f"{trainer} goes on after generation 6" in told for told in others)
    uid = (live.run_dir / "trainers" / lost).readlink()
    assert any("not in the journal: " in told and str(uid) in told and "--from" in told for told in others)
    peer = back(live, peers[0], trainer, 2, 9)
    while not isinstance(peer.next(), wire.JoinGroup):
        pass
    assert live.trainer(trainer).generation == 7
    live.restart()
    assert [t.trainer for t in live.client.status().trainers] == known
    assert live.trainer(trainer).generation == 7
    (replayed,) = [s for s in read(journal).segments if s.header.after == read(journal).header.after]
    assert not replayed.missing


def test_checkpoints_that_are_newer_than_the_journal_are_loaded_and_their_generation_is_not_granted(
    live: Pool,
) -> None:
    """The journal lost its end without a trace."""
    trainer, peers = live.running(1)
    live.kill()
    saved(live, trainer, "g000004-s00000070.h5")
    peers[0].die()
    live.up()
    assert any(f"{trainer} goes on after generation 4" in told for told in live.client.status().damage)
    other = back(live, peers[0], trainer, 0, 0)
    while not isinstance(join := other.next(), wire.JoinGroup):
        pass
    assert join.generation == 5
    live.replays()


def test_what_was_submitted_and_cannot_be_read_back_holds_that_trainer_when_it_needs_a_worker(live: Pool) -> None:
    trainer, peers = live.running(1)
    other = live.submit(name="b", max_nodes=1)
    file = live.run_dir / "trainers" / trainer / "spec.json"
    live.kill()
    whole = file.read_bytes()
    file.write_text("damage")
    live.up()
    assert any(str(file.name) in remark for remark in live.trainer(trainer).remarks)
    peer = back(live, peers[0], trainer, 1, 5)
    peer.say(wire.Progress(trainer, 1, 6, 0, 60))
    until(lambda: live.trainer(trainer).step == 6)
    peer.say(wire.WorkerExited(trainer, "died", "killed"))
    assert peer.hears(StopWorker).trainer == trainer
    peer.say(wire.WorkerExited(trainer, "stopped", "it was not running"))
    until(lambda: "none of its workers can be started" in live.trainer(trainer).held)
    assert peer.hears(wire.StartWorker).trainer == other, "the pool goes on"
    file.write_bytes(whole)
    live.client.cancel(other)
    assert peer.hears(StopWorker).trainer == other
    peer.say(wire.WorkerExited(other, "stopped", "as asked"))
    live.client.release(trainer)
    assert peer.hears(wire.StartWorker).trainer == trainer, "once it can be read"
    live.replays()


def test_a_journal_without_its_header_goes_on_with_the_copy_and_without_that_it_is_refused(live: Pool) -> None:
    trainer, peers = live.running(1)
    live.kill()
    journal = live.run_dir / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([b"damage\n", *lines[1:]]))
    live.up()
    assert live.client.status().damage[0].startswith(f"{journal}:1: damaged header")
    peer = back(live, peers[0], trainer, 1, 5)
    peer.say(wire.Progress(trainer, 1, 6, 0, 60))
    until(lambda: live.trainer(trainer).step == 6)
    live.replays()
    live.kill()
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([b"damage\n", *lines[1:]]))
    (live.run_dir / "journal" / "header.json").unlink()
    done = subprocess.run(live.command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 2
    assert f"{journal}:1: damaged header: not JSON" in done.stderr
    assert done.stderr.count("\n") == 1
    assert journal.read_bytes().splitlines()[0] == b"damage"


def test_a_journal_that_was_emptied_is_no_new_pool(live: Pool) -> None:
    name = live.client.status().coordinator
    trainer = live.submit(min_nodes=50)
    live.kill()
    (live.run_dir / "journal.jsonl").write_bytes(b"")
    live.up()
    status = live.client.status()
    assert (status.coordinator, status.trainers) == (name, [])
    assert any("not in the journal: " in told and trainer in told for told in status.damage)


def test_a_missing_journal_is_a_remark_of_the_new_pool(live: Pool) -> None:
    live.submit(name="forgotten")
    live.kill()
    (live.run_dir / "journal.jsonl").unlink()
    (live.run_dir / "journal" / "000000000001.jsonl.gz").touch()
    live.up()
    status = live.client.status()
    assert status.trainers == []
    assert any("is missing, so its trainers are not continued" in remark for remark in status.remarks)
    aside = live.run_dir / "earlier"
    assert len(list(aside.glob("*/journal/*.gz"))) == 1, "it is not taken for the new pool's"
    assert not list((live.run_dir / "journal").glob("*.gz"))


def test_after_a_drain_the_same_pool_comes_up_again_with_new_secrets_and_settings(live: Pool) -> None:
    peer = live.joined(1)[0]
    before, secrets = live.client.status(), live.file.read_text()
    trainer = live.submit(max_nodes=1)
    warm(peer, trainer)
    form([peer], trainer)
    live.client.down()
    live.kill()  # its journal says that it drains, and it did not end cleanly
    live.up("--pilots", "0", *settings(t_fwd_s=60))
    assert live.file.read_text() == secrets, "its pilots may still be there"
    peer.die()
    Peer(live.file, peer.secret, peer.host).welcomed().die()
    live.down()
    live.up("--pilots", "0", *settings(t_fwd_s=30))
    assert live.file.read_text() != secrets
    status = live.client.status()
    assert (status.coordinator, [t.trainer for t in status.trainers]) == (before.coordinator, [trainer])
    other = Peer(live.file, "other").welcomed()
    other.hears(wire.StartWorker)
    other.die()
    live.down()
    contents = read(live.run_dir / "journal.jsonl")
    assert [segment.header.configured[-1].settings["t_fwd_s"] for segment in contents.segments] == [120, 60, 30]
    assert replay(contents, fresh_core(contents)) == ""


def test_a_fresh_pool_keeps_the_earlier_one_aside_and_a_restart_of_it_is_no_fresh_one(live: Pool) -> None:
    live.submit()
    live.down()
    live.up("--pilots", "0", "--fresh")
    assert live.client.trainers().trainers == []
    earlier = list((live.run_dir / "earlier").glob("*/journal.jsonl"))
    assert len(earlier) == 1
    assert read(earlier[0]).header.version == __version__
    live.submit()
    live.kill()
    live.up("--pilots", "0", "--fresh", "--go-on")
    assert len(live.client.trainers().trainers) == 1


def test_a_signal_drains_and_a_second_one_ends_at_once(live: Pool) -> None:
    peer = live.joined(1)[0]
    assert live.process is not None
    live.process.send_signal(signal.SIGTERM)
    peer.hears(ReleaseNode)
    live.process.send_signal(signal.SIGINT)
    assert live.ended() == 0
    assert "second signal" in live.log()
    assert read_end(live.run_dir / "ended.json") == Ended(nodes_left=(peer.node,))


def test_a_hang_up_drains_and_another_one_does_not_end_at_once(live: Pool) -> None:
    """A terminal that closes signals twice: its shell and the kernel do; systemd sends one after SIGTERM."""
    peer = live.joined(1)[0]
    assert live.process is not None
    live.process.send_signal(signal.SIGHUP)
    peer.hears(ReleaseNode)
    live.process.send_signal(signal.SIGHUP)
    assert live.client.status().draining
    peer.die()
    assert live.ended() == 0
    assert read_end(live.run_dir / "ended.json") == Ended()


def test_under_nohup_a_hang_up_changes_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pool(tmp_path) as live:
            assert live.process is not None
            live.process.send_signal(signal.SIGHUP)
            assert not live.client.status().draining
    finally:
        signal.signal(signal.SIGHUP, before)


def limit_files(live: Pool, size: int) -> None:
    """The coordinator's files may not grow beyond ``size`` bytes."""
    assert live.process is not None
    resource.prlimit(live.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_on_a_full_disk_decisions_wait_trainers_train_on_and_it_goes_on_by_itself(tmp_path: Path) -> None:
    with pool(tmp_path, form_timeout_s=2) as live:
        trainer, peers = live.running(1)
        limit_files(live, (live.run_dir / "journal.jsonl").stat().st_size + 20)
        late = Peer(live.file, "late", "late").welcomed()
        until(lambda: "cannot write the journal" in live.client.status().trouble)
        peers[0].say(wire.Progress(trainer, 1, 6, 0, 60))
        until(lambda: live.trainer(trainer).step == 6)
        with pytest.raises(PilotError, match="once there is space: cannot write the journal"):
            live.submit(name="b")
        assert not late.has_news(3 * live.form_timeout_s)
        limit_files(live, resource.RLIM_INFINITY)
        until(lambda: live.client.status().trouble == "")
        late.say(wire.Heartbeat(0.0))
        assert late.hears(wire.StartWorker).trainer in (trainer, "b")
        until(lambda: any("had to wait for disk space" in text for text in live.client.status().remarks))
        assert live.trainer(trainer).phase == "running"
        assert live.trainer("b").phase in ("queued", "starting")
        live.kill()
        live.up()
        assert [t.trainer for t in live.client.trainers().trainers] == [trainer, "b"]
        back(live, peers[0], trainer, 1, 6)
        live.replays()


def test_reports_that_find_no_room_in_memory_either_are_dropped_with_a_remark(tmp_path: Path) -> None:
    live = Pool(tmp_path)
    little = "import sys; from pilot.service.durability import live_driver as d; d.WAITING_MAX = 2000; "
    live.command = [
        sys.executable, "-c", little + "from pilot.service.daemon import main; sys.exit(main())", *live.command[3:]
    ]  # fmt: skip
    try:
        live.up()
        trainer, peers = live.running(1)
        limit_files(live, (live.run_dir / "journal.jsonl").stat().st_size + 20)
        for step in range(10, 400, 10):
            peers[0].say(wire.Progress(trainer, 1, step, 0, 10 * step))
        peers[0].say(wire.Heartbeat(0.0))
        until(lambda: live.client.status().trouble)
        limit_files(live, resource.RLIM_INFINITY)
        until(lambda: any("its ledger has a gap" in text for text in live.trainer(trainer).remarks))
        assert live.trainer(trainer).step < 390
        live.replays()
    finally:
        live.kill()


def test_what_was_acknowledged_before_the_disk_was_full_outlives_a_kill(live: Pool) -> None:
    trainer, peers = live.running(1)
    limit_files(live, (live.run_dir / "journal.jsonl").stat().st_size + 20)
    with pytest.raises(PilotError, match="once there is space"):
        live.submit(name="b")
    live.restart()
    assert [t.trainer for t in live.client.trainers().trainers] == [trainer]
    back(live, peers[0], trainer, 1, 5).say(wire.Progress(trainer, 1, 6, 0, 60))
    until(lambda: live.trainer(trainer).step == 6)
    assert live.submit(name="b") == "b"
    live.replays()


def test_a_second_signal_ends_it_also_on_a_full_disk(live: Pool) -> None:
    live.running(1)
    limit_files(live, (live.run_dir / "journal.jsonl").stat().st_size + 20)
    with pytest.raises(PilotError, match="the pool is drained once there is space"):
        live.client.down()
    assert live.process is not None
    live.process.send_signal(signal.SIGTERM)
    live.ended()


def test_no_trainer_is_shown_at_work_in_a_pool_without_a_coordinator(
    live: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, _ = live.running(1)
    live.kill()
    (live.run_dir / "connection.json").unlink()
    for command in (["ls"], ["ls", "--all"], ["status"], ["status", trainer]):
        assert run([*command, "--run-dir", str(live.run_dir)]) == 0
        shown = capsys.readouterr().out
        assert "queued" in shown, command
        assert "is down" in shown or command == ["status", trainer]
    assert run(["ls", "--json", "--run-dir", str(live.run_dir)]) == 0
    (told,) = json.loads(capsys.readouterr().out)["trainers"]
    assert (told["phase"], told["nodes"], told["target"]) == ("queued", [], [])
    assert told["waits"] == "it was running when the coordinator ended; waiting until the pool is up again"


DAY_LATER = """
import sys, time
right = time.time
time.time = lambda: right() + {ahead_s}
from pilot.service.daemon import main
sys.exit(main())
"""


def test_a_system_clock_that_was_set_moves_nothing_in_a_pool_that_is_restarted(live: Pool) -> None:
    """Node-hours, ages and budgets count what has passed, not what the system's clock says."""
    live.joined(2)
    was_s = live.client.status().now_s
    command = live.command
    for ahead_s in (86400.0, -86400.0):
        live.command = [command[0], "-c", DAY_LATER.format(ahead_s=ahead_s), *command[3:]]
        live.restart()
        status = live.client.status()
        assert was_s < status.now_s < was_s + DEADLINE_S
        assert status.used_node_hours < 2 * DEADLINE_S / 3600
    owner = heartbeat.read(live.run_dir / "coordinator.lock")
    assert owner is not None
    assert owner.zero_s is not None


@pytest.mark.parametrize("harm", ["removed", "emptied"])
def test_files_that_somebody_removes_or_empties_are_written_again_and_nothing_is_lost(live: Pool, harm: str) -> None:
    trainer, peers = live.running(1)
    journal, key = live.run_dir / "journal.jsonl", live.run_dir / "server.key"
    before = key.read_bytes()
    connection = live.file.read_bytes()
    for path in (journal, live.file, key):
        path.unlink() if harm == "removed" else path.write_bytes(b"")
    peers[0].say(wire.Progress(trainer, 1, 6, 0, 60))
    until(lambda: live.file.exists() and live.file.read_bytes() == connection)
    until(lambda: key.exists() and key.read_bytes() == before)
    submitted = live.submit(name="acknowledged", min_nodes=50)
    until(lambda: any("journal.jsonl was removed or damaged" in told for told in live.client.status().remarks))
    live.restart()
    assert {t.trainer for t in live.client.status().trainers} == {trainer, submitted}
    peer = back(live, peers[0], trainer, 1, 6)
    peer.say(wire.Progress(trainer, 1, 7, 0, 70))
    until(lambda: live.trainer(trainer).step == 7)
    if harm == "removed":
        live.replays()
