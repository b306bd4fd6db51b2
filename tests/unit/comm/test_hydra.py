"""How a group is launched."""

from __future__ import annotations

from launchers.hydra import environment, mpiexec_command, proxy_commands

OUTPUT = """\
HYDRA_LAUNCH: /opt/bin/hydra_pmi_proxy --control-port 10.0.0.1:36405 --pgid 0 --proxy-id 0
HYDRA_LAUNCH: /opt/bin/hydra_pmi_proxy --control-port 10.0.0.1:36405 --pgid 0 --proxy-id 1
HYDRA_LAUNCH_END
""".splitlines()


def test_the_command_names_one_host_per_rank_and_the_generation() -> None:
    command = mpiexec_command(3, 12, interface="hsn0", python="/nowhere/python")
    assert command[0] == "mpiexec"
    assert command[command.index("-hosts") + 1] == "rank0:1,rank1:1,rank2:1"
    assert command[command.index("-iface") + 1] == "hsn0"
    assert command[-4:] == ["/nowhere/python", "-m", "pilot.comm.rank", "12"]


def test_proxy_commands_come_by_rank_and_only_when_they_are_complete() -> None:
    assert proxy_commands(OUTPUT[:-1]) is None
    commands = proxy_commands(OUTPUT)
    assert commands is not None
    assert [command.split()[-1] for command in commands] == ["0", "1"]
    assert all(command.startswith("/opt/bin/hydra_pmi_proxy ") for command in commands)


def test_only_on_one_machine_are_ranks_kept_from_shared_memory() -> None:
    assert "MPIR_CVAR_NOLOCAL" not in environment(provider="verbs")
    assert environment(provider="verbs")["FI_PROVIDER"] == "verbs"
    assert environment(one_machine=True)["MPIR_CVAR_NOLOCAL"] == "1"
