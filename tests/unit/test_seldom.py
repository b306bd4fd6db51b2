"""The benchmark of seldom-synchronised training, and its slow network."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from benchmarks import seldom
from benchmarks.seldom_pool import Moment, Step
from benchmarks.slow_network import SlowLan, unavailable

MBIT_S, DELAY_S = 50.0, 0.03
MEGABYTES = 4
ANSWER = f"""
import socket
with socket.create_server(("", 5000)) as server:
    print("listens", flush=True)
    (peer, _) = server.accept()
    left = {MEGABYTES} * 1000000
    while left:
        left -= len(peer.recv(1 << 20))
    peer.sendall(b".")
    peer.recv(1)
"""


def steps(begin_s: float, count: int, number: int, size: int = 2) -> list[Step]:
    """One step a second, in a round."""
    return [Step(begin_s + k, size, number) for k in range(count)]


def test_an_exchange_is_the_wait_of_the_node_that_came_last() -> None:
    first = steps(0, 5, 1) + steps(10, 5, 2)
    last = steps(0.5, 6, 1) + steps(10, 5, 2)
    assert seldom.exchanges_s([first, last], 1.0) == [10 - 5.5 - 1]
    assert seldom.exchanges_s([first, last[6:]], 1.0) == [], "only rounds whose end all nodes saw"


def test_a_summary_counts_the_steps_between_two_moments() -> None:
    record = {"a": steps(0, 5, 1), "b": steps(0.5, 5, 1), "ended": []}
    found = seldom.summary(record, Moment(1.0, 5000), Moment(3.0, 5000 + 4 * 64 * 10))
    assert (found["inner steps per s"], found["bytes per sample"], found["step_ms"]) == (2.0, 10.0, 1000.0)


def test_a_gap_counts_if_it_reaches_into_the_time() -> None:
    record = [steps(0, 3, 1) + steps(7, 3, 2), steps(0, 10, 1)]
    assert seldom.longest_gap_s(record, 1.0, 9.0) == 5
    assert seldom.longest_gap_s(record, 7.0, 9.0) == 1


def test_it_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["seldom"])
    with pytest.raises(SystemExit, match=r"^only root can make network namespaces$"):
        seldom.main()


@pytest.fixture
def lan() -> Iterator[SlowLan]:
    if reason := unavailable():
        pytest.skip(reason)
    made = SlowLan(MBIT_S, DELAY_S)
    yield made
    made.close()
    for what in ("link", "netns"):
        assert made.name not in subprocess.run(["ip", what], capture_output=True, text=True, check=True).stdout


def test_the_slow_network_delays_and_limits(lan: SlowLan) -> None:
    with subprocess.Popen([*lan.port(1), sys.executable, "-c", ANSWER], stdout=subprocess.PIPE) as peer:
        assert peer.stdout is not None
        peer.stdout.readline()
        begin_s = time.monotonic()
        with socket.create_connection((lan.address_of(1), 5000)) as link:
            assert time.monotonic() - begin_s >= DELAY_S, "there and back over one of the two cables between nodes"
            link.sendall(bytes(MEGABYTES * 1_000_000))
            link.recv(1)
            assert time.monotonic() - begin_s >= MEGABYTES * 8 / MBIT_S
    assert lan.sent_bytes(1) > 0
