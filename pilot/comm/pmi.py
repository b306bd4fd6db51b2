"""The server side of PMI-1, by which a rank process learns in MPI_Init where the other ranks listen. Pure: no IO.

MPICH's client sends lines of ``name=value`` words over the socket named by ``PMI_FD``, and waits for an answer to each.
A rank *puts* its addresses and enters the *barrier*. When all ranks have done so, the barrier opens, and each rank
*gets* what the others have put. (A rank that is alone in its world does none of this.) The process that serves a rank
collects its puts (:attr:`PmiServer.puts`) once it has entered the barrier, merges them with those of the others, and
opens the barrier with the complete table (:meth:`PmiServer.open`).

    the client sends                      the answer
    init, get_maxes, get_appnum,          at once
    get_my_kvsname, get_universe_size
    put                                   at once; kept until the barrier
    get                                   at once: from the table of the last barrier
    barrier_in                            when the barrier opens
    finalize                              at once; nothing is sent after that
    abort                                 none: the process is about to end
    joined                                none; sent by the group's first rank when MPI is up on all (:data:`JOINED`)

``PMI_process_mapping`` puts each ``rails`` consecutive ranks on a node of their own, so MPICH uses the
network between pilots even if they share a host. The name of the key-value space is different on each node; MPICH names
its shared-memory segment after it (:mod:`pilot.comm.mpich`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pilot.core.errors import ProtocolError

NAME_MAX, KEY_MAX, VALUE_MAX = 256, 64, 1024
"""Limits in characters, as reported to the client (``get_maxes``)."""

PUTS_MAX = 64
"""Most puts between two barriers; MPICH makes one or two."""

JOINED = b"cmd=joined\n"
"""Our own word, not MPICH's, after MPI_Init and an operation of all ranks."""

_LINE_MAX_BYTES = 2 * (NAME_MAX + KEY_MAX + VALUE_MAX)
_KEY = re.compile(rf"[!-<>-~]{{1,{KEY_MAX}}}")
_VALUE = re.compile(rf"[!-~]{{1,{VALUE_MAX}}}")


class PmiServer:
    """Serves one rank.

    Parameters
    ----------
    size : ranks in the world
    name : name of its node's key-value space
    rails : ranks per node
    """

    def __init__(self, size: int, name: str, rails: int = 1) -> None:
        self._answers = {
            "init": _line("response_to_init", pmi_version=1, pmi_subversion=1, rc=0),
            "get_maxes": _line("maxes", kvsname_max=NAME_MAX, keylen_max=KEY_MAX, vallen_max=VALUE_MAX, rc=0),
            "get_appnum": _line("appnum", appnum=0, rc=0),
            "get_my_kvsname": _line("my_kvsname", kvsname=name, rc=0),
            "get_universe_size": _line("universe_size", size=size, rc=0),
            "finalize": _line("finalize_ack", rc=0),
            **dict.fromkeys(("barrier_in", "joined", "abort"), b""),
        }
        self._own = {"PMI_process_mapping": f"(vector,(0,{size // rails},{rails}))"}
        self._table: dict[str, str] = {}
        self._received = b""
        self.puts: dict[str, str] = {}
        self.in_barrier = False
        self.joined = False
        self.finalized = False

    def hear(self, received: bytes) -> bytes:
        """Process received bytes; returns the bytes to send. :class:`ProtocolError` if they are not PMI-1, or out of
        turn."""
        *lines, self._received = (self._received + received).split(b"\n")
        if max(map(len, (*lines, self._received))) > _LINE_MAX_BYTES:
            raise ProtocolError("PMI: the line is too long")
        return b"".join(self._answer(line.decode("ascii", "replace")) for line in lines)

    def open(self, table: Mapping[str, str]) -> bytes:
        """Open the barrier that this rank is in; ``table`` has the puts of all ranks. Returns the bytes to send."""
        if not self.in_barrier:
            raise ProtocolError("PMI: the rank is not in a barrier")
        for key, value in table.items():
            check_put(key, value)
        self._table |= table
        self.puts = {}
        self.in_barrier = False
        return _line("barrier_out", rc=0)

    def _answer(self, line: str) -> bytes:
        words = dict(word.partition("=")[::2] for word in line.split())
        if self.in_barrier or self.finalized:
            raise ProtocolError(f"PMI: {line[:80]!r} out of turn")
        command = words.get("cmd")
        if command == "put":
            return self._put(words.get("key", ""), words.get("value", ""))
        if command == "get":
            return self._get(words.get("key", ""))
        if command not in self._answers:
            raise ProtocolError(f"PMI: not understood: {line[:80]!r}")
        self.in_barrier |= command == "barrier_in"
        self.finalized |= command == "finalize"
        self.joined |= command == "joined"
        return self._answers[command]

    def _put(self, key: str, value: str) -> bytes:
        check_put(key, value)
        if key in self.puts or len(self.puts) == PUTS_MAX:
            raise ProtocolError(f"PMI: {key} put twice, or more than {PUTS_MAX} keys")
        self.puts[key] = value
        return _line("put_result", rc=0)

    def _get(self, key: str) -> bytes:
        value = self._own.get(key, self._table.get(key))
        return (
            _line("get_result", rc=-1, msg="key_not_found") if value is None else _line("get_result", rc=0, value=value)
        )


def variables(descriptor: int, rank: int, size: int) -> dict[str, str]:
    """The variables by which MPI_Init finds its server, on a descriptor of its process."""
    return {"PMI_FD": str(descriptor), "PMI_RANK": str(rank), "PMI_SIZE": str(size)}


def check_put(key: str, value: str) -> None:
    """:class:`ProtocolError` if no rank can have put this; a blank or a line break in it would forge an answer."""
    if not (_KEY.fullmatch(key) and _VALUE.fullmatch(value)):
        raise ProtocolError(f"PMI: not a key and a value: {key[:80]!r}, {value[:80]!r}")


def _line(command: str, **words: object) -> bytes:
    return " ".join(f"{name}={value}" for name, value in {"cmd": command, **words}.items()).encode() + b"\n"
