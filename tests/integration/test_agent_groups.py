"""Real agents whose workers form real MPI groups and train."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psutil
import pytest

from pilot.core.commands import DissolveGroup, PauseGroup, ReleaseNode, StopWorker, WriteCheckpoint
from pilot.host import proc
from pilot.protocol import wire
from tests.integration.agent_lab import LIMIT_S, Lab, Peer, launch, until

SCRIPT = Path(__file__).with_name("script.py").read_text()


SHARDED = """
import os, signal
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset
import pilot.train

class Last(nn.Linear):
    def forward(self, inputs):
        if session.steps == 5 and session.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs)

torch.manual_seed(7)
model, mesh = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), Last(7, 1)), pilot.train.node_mesh()
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
session = pilot.train.session(model, optimizer)
loader = session.loader(TensorDataset(torch.randn(64, 5), torch.randn(64, 1)), global_batch_size=8)
for _ in session.epochs(100_000):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        session.step(loss)
"""
"""The last of four processes is killed in the middle of a forward pass that its neighbour waits for."""


class Pilots:
    """Some pilots with one warm worker each, of one trainer."""

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        count: int,
        epochs: int = 100_000,
        order: wire.StartWorker | None = None,
    ) -> None:
        self.lab = lab
        self.processes = [lab.agents.start(lab.coordinator.file) for _ in range(count)]
        self.peers = [lab.coordinator.peer(process) for process in self.processes]
        arguments = f"--epochs {epochs} --global-batch-size 64 --step-s 0.005 --save {folder}/out".split()
        for peer in self.peers:
            self.lab.send(peer, order or launch(folder, SCRIPT, *arguments))
        for peer in self.peers:
            self.lab.expect(peer, wire.WorkerReady)

    def form(self, generation: int, members: list[Peer]) -> wire.GroupFormed:
        """Form a group that starts at once, and wait for its first step."""
        leader, size = members[0], len(members)
        for rank, peer in enumerate(members):
            self.lab.send(peer, wire.JoinGroup("t1", generation, rank, size))
        if size > 1:
            self.introduce(generation, members)
        assert self.lab.expect(leader, wire.RankJoined).generation == generation
        up = self.lab.expect(leader, wire.GroupFormed)
        self.lab.expect(leader, wire.Progress)
        return up

    def introduce(self, generation: int, members: list[Peer]) -> None:
        """Exchange their addresses, as the coordinator does."""
        table = {}
        for peer in members:
            table |= self.lab.expect(peer, wire.RankAddress).puts
        for peer in members:
            self.lab.send(peer, wire.GroupAddresses("t1", generation, table, []))

    def ranks(self, peer: Peer, generation: int) -> list[psutil.Process]:
        """The rank processes of ``peer``."""
        return [process for process in proc.marked(peer.mark) if name_of(process) == f"rank g{generation}"]

    def half_form(self, generation: int, peer: Peer) -> list[Path]:
        """Let ``peer`` join a group whose other rank never comes; returns the segments that MPICH holds meanwhile."""
        self.lab.send(peer, wire.JoinGroup("t1", generation, 0, 2))
        file = self.lab.agents.temporary / peer.hello.pilot / "segments"

        def there() -> list[Path]:
            names = file.read_text().split() if file.exists() else []
            return [path for name in names if (path := proc.SHARED_MEMORY / name).exists()]

        until(lambda: there() != [], "a note of MPICH's segment, and the segment")
        return there()

    def leave(self) -> None:
        """All leave cleanly, and nothing of them is left."""
        for process, peer in zip(self.processes, self.peers, strict=True):
            if process.poll() is None:
                self.lab.send(peer, ReleaseNode("", "the test is over"))
                assert process.wait(LIMIT_S) == 0
        until(lambda: all(proc.marked(peer.mark) == [] for peer in self.peers), "the end of all processes")
        until(lambda: self.lab.agents.workdirs() == [], f"an empty {self.lab.agents.temporary}", limit_s=15)


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_survivors_go_on_when_a_pilot_is_killed(lab: Lab, tmp_path: Path) -> None:
    pilots = Pilots(lab, tmp_path, 2)
    first, second = pilots.peers
    assert pilots.form(1, [first, second]).resumed == 0

    proc.kill(proc.tree(pilots.processes[1].pid))
    lab.send(first, DissolveGroup("t1", 1, (), "a member is lost"))
    up = pilots.form(2, [first])
    assert up.resumed is None
    assert up.step > 0

    lab.send(first, PauseGroup("t1", 2, (), ""))
    paused = lab.expect(first, wire.RankPaused)
    lab.send(first, WriteCheckpoint("t1", "", "to see"))
    done = lab.expect(first, wire.CheckpointWritten)
    assert (done.error, done.step, Path(done.path).exists()) == ("", paused.step, True)
    pilots.leave()


def test_a_killed_rank_process_is_reported_and_the_worker_lives(lab: Lab, tmp_path: Path) -> None:
    pilots = Pilots(lab, tmp_path, 1)
    (peer,) = pilots.peers
    step = pilots.form(1, [peer]).step
    (rank,) = pilots.ranks(peer, 1)
    rank.kill()
    assert lab.expect(peer, wire.GroupBroken).reason.startswith("its rank process was killed by SIGKILL")
    up = pilots.form(2, [peer])
    assert up.resumed is None
    assert up.step >= step
    pilots.leave()


def test_a_full_temporary_directory_ends_the_worker_and_no_agent(lab: Lab, tmp_path: Path) -> None:
    pilots = Pilots(lab, tmp_path, 1)
    (peer,) = pilots.peers
    pilots.form(1, [peer])
    home = lab.agents.temporary / peer.hello.pilot
    (home / "segments.new").mkdir()  # as good as full
    lab.send(peer, DissolveGroup("t1", 1, (), "another one follows"))
    lab.send(peer, wire.JoinGroup("t1", 2, 0, 1))
    exited = lab.expect(peer, wire.WorkerExited)
    assert (exited.cause, exited.detail) == ("died", f"its node cannot write in {home}: Is a directory")
    pilots.leave()


def test_the_rails_of_a_node_end_together(lab: Lab, tmp_path: Path) -> None:
    lab.coordinator.welcome["rails"] = 2
    pilots = Pilots(lab, tmp_path, 2)
    first, second = pilots.peers
    pilots.form(1, [first, second])
    assert [len(pilots.ranks(peer, 1)) for peer in pilots.peers] == [2, 2]
    max(pilots.ranks(first, 1), key=lambda rank: rank.pid).kill()
    assert lab.expect(first, wire.GroupBroken).reason.startswith("its rank process was killed by")
    until(lambda: pilots.ranks(first, 1) == [], "the end of the other rail")
    for peer in pilots.peers:
        lab.send(peer, DissolveGroup("t1", 1, (), "a rank is lost"))
    pilots.form(2, [first, second])
    lab.send(second, ReleaseNode("", "the test is over"))
    assert pilots.processes[1].wait(LIMIT_S) == 0
    lab.send(first, DissolveGroup("t1", 2, (), "a member left"))
    pilots.form(3, [first])
    assert len(pilots.ranks(first, 3)) == 1, "a node by itself has nobody to sum with"
    pilots.leave()


@pytest.mark.long
def test_a_process_killed_in_a_sharded_forward_pass_ends_its_node_and_no_other(lab: Lab, tmp_path: Path) -> None:
    order = msgspec.structs.replace(launch(tmp_path, SHARDED), ranks=2)
    pilots = Pilots(lab, tmp_path, 2, order=order)
    first, second = pilots.peers
    pilots.form(1, [first, second])
    exited = lab.expect(second, wire.WorkerExited)
    assert (exited.cause, "SIGKILL" in exited.detail) == ("died", True), "not by what that did to its neighbour"
    lab.send(first, DissolveGroup("t1", 1, (), "a member is lost"))
    up = pilots.form(2, [first])
    assert (up.step, up.resumed) == (5, None), "the step in which it was killed is done again"
    pilots.leave()


def test_a_generation_is_killed_and_no_other(lab: Lab, tmp_path: Path) -> None:
    pilots = Pilots(lab, tmp_path, 1)
    (peer,) = pilots.peers
    pilots.form(1, [peer])
    (first,) = pilots.ranks(peer, 1)
    first.terminate()  # it ignores a batch system's notice to all processes of a job
    segments = pilots.half_form(2, peer)
    lab.send(peer, DissolveGroup("t1", 2, (), "superseded"))
    until(lambda: pilots.ranks(peer, 2) == [], "the end of generation 2")
    until(lambda: not any(segment.exists() for segment in segments), "the end of its segments")
    lab.expect(peer, wire.Progress)
    assert alive(first)
    pilots.leave()


def test_an_agent_killed_while_a_group_forms_leaves_no_segment(lab: Lab, tmp_path: Path) -> None:
    pilots = Pilots(lab, tmp_path, 1)
    (peer,) = pilots.peers
    segments = pilots.half_form(1, peer)
    proc.kill(proc.tree(pilots.processes[0].pid))
    until(lambda: not any(segment.exists() for segment in segments), "the end of its segments", limit_s=15)
    pilots.processes[0].wait()
    pilots.leave()


@pytest.mark.parametrize("victim", ["rank", "worker"])
def test_a_stopped_process_is_killed_after_silent_s(lab: Lab, tmp_path: Path, victim: str) -> None:
    lab.coordinator.welcome["silent_s"] = 1.0
    pilots = Pilots(lab, tmp_path, 1)
    (peer,) = pilots.peers
    pilots.form(1, [peer])
    if victim == "rank":
        pilots.ranks(peer, 1)[0].suspend()
        assert "stopped (SIGSTOP)" in lab.expect(peer, wire.GroupBroken).reason
        pilots.form(2, [peer])
    else:
        (worker,) = [
            p for p in peer.processes() if "pilot.agent.fork_server" in p.cmdline() and p.ppid() != peer.hello.pid
        ]
        worker.suspend()
        down = lab.expect(peer, wire.WorkerExited)
        assert down.cause == "died"
        assert "stopped (SIGSTOP)" in down.detail
    pilots.leave()


def test_orphans_pause_write_their_state_and_leave(lab: Lab, tmp_path: Path) -> None:
    lab.coordinator.welcome["orphan_s"] = 15.0
    pilots = Pilots(lab, tmp_path, 2)
    pilots.form(1, pilots.peers)
    lab.coordinator.close()
    for process in pilots.processes:
        assert process.wait(LIMIT_S) == 0
    files = list((tmp_path / "trainers/t1/checkpoints").glob("*.h5"))
    assert len(files) == 1, "both hold the same state, so they publish the same file"
    for process in pilots.processes:
        assert "given up" not in lab.agents.said(process)
    pilots.leave()


def test_a_finished_trainer_does_what_its_script_does_last(lab: Lab, tmp_path: Path) -> None:
    pilots = Pilots(lab, tmp_path, 2, epochs=30)
    pilots.form(1, pilots.peers)
    lab.expect(pilots.peers[0], wire.TrainerFinished)
    for peer in pilots.peers:
        lab.send(peer, StopWorker("t1", "", "finished"))
    for peer in pilots.peers:
        down = lab.expect(peer, wire.WorkerExited)
        assert (down.cause, down.detail) == ("stopped", "finished")
        assert not [m for m in peer.inbox if isinstance(m, wire.GroupBroken)]
    assert (tmp_path / "out.0").stat().st_size > 0, "what rank 0 saves after its loop"
    until(lambda: all(pilots.ranks(peer, 1) == [] for peer in pilots.peers), "the end of the group")
    pilots.leave()


def test_ranks_listen_on_the_pilots_interface_only(lab: Lab, tmp_path: Path) -> None:
    pilots = Pilots(lab, tmp_path, 2)
    pilots.form(1, pilots.peers)
    for peer in pilots.peers:
        sockets = [socket for process in peer.processes() for socket in process.net_connections("inet")]
        listening = {socket.laddr.ip for socket in sockets if not socket.raddr}
        assert listening == {"127.0.0.1"}
    pilots.leave()


def test_a_table_that_is_none_ends_the_rank_process_and_nothing_else(lab: Lab, tmp_path: Path) -> None:
    pilots = Pilots(lab, tmp_path, 1)
    (peer,) = pilots.peers
    lab.send(peer, wire.JoinGroup("t1", 1, 0, 2))
    lab.expect(peer, wire.RankAddress)
    lab.send(peer, wire.GroupAddresses("t1", 1, {"key": "forged\ncmd=barrier_out"}, []))
    assert "not a key and a value" in lab.expect(peer, wire.GroupBroken).reason
    pilots.form(2, [peer])
    pilots.leave()
