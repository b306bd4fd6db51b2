"""PMI-1 as MPICH's client speaks it, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.comm.pmi import JOINED, PUTS_MAX, PmiServer
from pilot.core.errors import ProtocolError

DIALOGUE = [
    (b"cmd=init pmi_version=1 pmi_subversion=1\n", b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"),
    (b"cmd=get_maxes\n", b"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0\n"),
    (b"cmd=get_appnum\n", b"cmd=appnum appnum=0 rc=0\n"),
    (b"cmd=get_my_kvsname\n", b"cmd=my_kvsname kvsname=space rc=0\n"),
    (b"cmd=get_universe_size\n", b"cmd=universe_size size=3 rc=0\n"),
    (b"cmd=get kvsname=space key=PMI_process_mapping\n", b"cmd=get_result rc=0 value=(vector,(0,3,1))\n"),
    (b"cmd=get kvsname=space key=PMI_hwloc_xmlfile\n", b"cmd=get_result rc=-1 msg=key_not_found\n"),
    (b"cmd=put kvsname=space key=-allgather-1-0 value=0200A2817F[2]01[8]\n", b"cmd=put_result rc=0\n"),
    (b"cmd=barrier_in\n", b""),
]
"""What rank 0 of three sends in MPI_Init of MPICH 5.0.2."""


def in_barrier() -> PmiServer:
    server = PmiServer(3, "space")
    for said, answered in DIALOGUE:
        assert server.hear(said) == answered
    assert server.in_barrier
    return server


def test_a_rank_gets_what_all_have_put_when_the_barrier_has_opened() -> None:
    server = in_barrier()
    assert server.puts == {"-allgather-1-0": "0200A2817F[2]01[8]"}
    assert server.open(server.puts | {"-allgather-1-1": "02=FF"}) == b"cmd=barrier_out rc=0\n"
    assert not server.in_barrier
    assert server.puts == {}, "the next barrier brings what is put next"
    answer = server.hear(b"cmd=get kvsname=space key=-allgather-1-1\n")
    assert answer == b"cmd=get_result rc=0 value=02=FF\n"
    assert not server.joined
    assert server.hear(JOINED) == b""
    assert server.joined
    assert server.hear(b"cmd=finalize\n") == b"cmd=finalize_ack rc=0\n"


@given(st.lists(st.integers(1, 40)))
def test_lines_are_understood_however_they_are_cut(cuts: list[int]) -> None:
    server, said = PmiServer(3, "space"), b"".join(line for line, _ in DIALOGUE)
    answered = b""
    for cut in cuts:
        answered += server.hear(said[:cut])
        said = said[cut:]
    assert answered + server.hear(said) == b"".join(answer for _, answer in DIALOGUE)


def test_rails_share_a_node() -> None:
    assert b"(vector,(0,3,2))" in PmiServer(6, "space", 2).hear(b"cmd=get kvsname=space key=PMI_process_mapping\n")


def test_nobody_overrides_where_the_ranks_are() -> None:
    server = in_barrier()
    server.open({"PMI_process_mapping": "(vector,(0,1,3))"})
    assert b"(vector,(0,3,1))" in server.hear(b"cmd=get kvsname=space key=PMI_process_mapping\n")


def test_a_table_with_a_line_in_it_is_refused() -> None:
    server = in_barrier()
    for forged in ("x\ncmd=barrier_out", "x y", "", "é", "x" * 1025):
        with pytest.raises(ProtocolError, match="not a key and a value"):
            server.open({"key": forged})
        with pytest.raises(ProtocolError, match="not a key and a value"):
            server.open({forged: "value"})
    with pytest.raises(ProtocolError, match="not a key and a value"):
        server.open({"a=b": "value"})


@pytest.mark.parametrize(
    "said",
    [
        b"cmd=mcmd\n",
        b"\n",
        b"init\n",
        b"\xff\xfe\n",
        b"cmd=put kvsname=space key=k\n",
        b"cmd=put kvsname=space key=k value=v\ncmd=put kvsname=space key=k value=w\n",
        b"cmd=barrier_in\ncmd=get_maxes\n",
        b"cmd=finalize\ncmd=get_maxes\n",
        b"x" * 5000,
        b"".join(b"cmd=put kvsname=space key=k%d value=v\n" % i for i in range(PUTS_MAX + 1)),
    ],
)
def test_what_is_no_pmi_is_refused(said: bytes) -> None:
    with pytest.raises(ProtocolError, match="PMI"):
        PmiServer(3, "space").hear(said)


@given(st.binary())
def test_any_bytes_are_answered_or_refused(said: bytes) -> None:
    try:
        assert isinstance(PmiServer(3, "space").hear(said), bytes)
    except ProtocolError as error:
        assert "PMI" in str(error)


def test_a_barrier_that_nobody_is_in_does_not_open() -> None:
    with pytest.raises(ProtocolError, match="not in a barrier"):
        PmiServer(3, "space").open({})
