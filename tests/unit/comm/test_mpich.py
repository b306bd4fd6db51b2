"""A rank process's environment, and MPICH's names for its segments."""

from __future__ import annotations

from pilot.comm.mpich import environment, segment_name


def test_the_ports_are_bound_to_the_sites_interface() -> None:
    made = environment({"PATH": "/bin"}, interface="hsn0", provider="tcp")
    assert (made["PATH"], made["FI_TCP_IFACE"], made["FI_PROVIDER"]) == ("/bin", "hsn0", "tcp")
    assert "FI_TCP_IFACE" not in environment({}, interface=None, provider="tcp")


def test_a_launchers_world_is_forgotten_and_the_fabrics_settings_are_kept() -> None:
    launcher = "PMI_RANK PMIX_NAMESPACE PALS_RANKID SLURM_PMI_KVS_NO_DUP_KEYS HYDI_CONTROL_FD OMPI_COMM_WORLD_RANK"
    kept = {"SLURM_JOB_ID": "7", "SLINGSHOT_VNIS": "3", "FI_CXI_RX_MATCH_MODE": "hybrid"}
    made = environment(dict.fromkeys(launcher.split(), "1") | kept, interface="lo", provider="cxi")
    assert not set(made) & set(launcher.split())
    assert kept.items() <= made.items()


def test_the_segments_name_is_that_of_mpich_5() -> None:
    assert segment_name("kvs_31581_0_53872661_vm", 1) == "mpich_shm_a0c3461a_1"  # seen mapped in a rank
