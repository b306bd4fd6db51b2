"""A slow network of namespaces: each has a cable to the bridge, with a limited rate in both directions (tc's token
buckets) and a delay. A process per cable delays its packets, since not every kernel has ``netem``.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from tests.chaos import network
from tests.chaos.network import INTERFACE, Lan

MTU = 9000
"""Bytes of a packet at most. Larger than usual, so that the delays use little of the machine's cores."""
_CLONE = "/dev/net/tun"
_SET_NAME = 0x400454CA
_IS_PACKETS_OF_ETHERNET = 0x1002
_QUEUE_MS, _BURST_BYTES = 100, 65536
_MOST_AT_ONCE = 64
_FIRST = -10
"""The niceness of the delaying processes: no node may slow the network down."""


def unavailable() -> str:
    """Why there can be no slow network here; empty if there can."""
    return network.unavailable() or ("" if Path(_CLONE).exists() else f"{_CLONE} is missing here")


class SlowLan(Lan):
    """A network whose nodes each send and receive at most ``mbit_s``, with ``delay_s`` from one node to another."""

    def __init__(self, mbit_s: float, delay_s: float) -> None:
        self._mbit_s, self._delay_s = mbit_s, delay_s
        self._lines: list[subprocess.Popen[bytes]] = []
        super().__init__()

    def sent_bytes(self, number: int) -> int:
        """Return how many bytes a namespace has sent, their Ethernet headers included."""
        return int(Path(f"/sys/class/net/{self._outside(number)}/statistics/rx_bytes").read_text())

    def close(self) -> None:
        """Remove everything."""
        for line in self._lines:
            line.kill()
            line.wait()
        super().close()

    def _connect(self, space: str, outside: str) -> None:
        inside = outside.replace("v", "w")
        ends = [_tap(name) for name in (inside, outside)]
        # A path from node to node has two cables.
        command = [sys.executable, "-m", __name__, str(self._delay_s / 2), *map(str, ends)]
        self._lines.append(subprocess.Popen(command, pass_fds=ends, stdin=subprocess.PIPE))
        for end in ends:
            os.close(end)
        _run("ip", "link", "set", inside, "netns", space, "name", INTERFACE)
        for place, name in (([], outside), (["-n", space], INTERFACE)):
            _run("ip", *place, "link", "set", name, "mtu", str(MTU))
            rate = ["rate", f"{self._mbit_s}mbit", "burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms"]
            _run("tc", *place, "qdisc", "add", "dev", name, "root", "tbf", *rate)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _tap(name: str) -> int:
    """Create an interface whose packets this process reads and writes; return its descriptor."""
    end = os.open(_CLONE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _SET_NAME, struct.pack("16sH22x", name.encode(), _IS_PACKETS_OF_ETHERNET))
    return end


def forward(ends: tuple[int, int], delay_s: float, stop: int) -> None:
    """Pass each packet of one end to the other after ``delay_s``, until ``stop`` is closed."""
    others = {ends[0]: ends[1], ends[1]: ends[0]}
    under_way: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready, _, _ = select.select([*ends, stop], [], [], wait_s)
        if stop in ready:
            return
        now_s = time.monotonic()
        under_way += [(now_s + delay_s, others[end], packet) for end in ready for packet in _packets(end)]
        while under_way and under_way[0][0] <= now_s:
            _, end, packet = under_way.popleft()
            _send(end, packet)


def _packets(end: int) -> list[bytes]:
    """Return the packets that wait at an end."""
    packets: list[bytes] = []
    with suppress(OSError):  # no more, or the interface is down
        while len(packets) < _MOST_AT_ONCE:
            packets.append(os.read(end, 1 << 16))
    return packets


def _send(end: int, packet: bytes) -> None:
    with suppress(OSError):  # the interface is down: the packet is lost
        os.write(end, packet)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the network lasts until the last node has left
    os.nice(_FIRST)
    forward((int(sys.argv[2]), int(sys.argv[3])), float(sys.argv[1]), sys.stdin.fileno())
