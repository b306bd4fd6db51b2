"""The types of messages' fields, with their limits: a peer that exceeds one is refused."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pilot.submission.loaded_code import PATH_MAX

Count = Annotated[int, Meta(ge=0, le=2**53)]  #: every JSON reader represents it exactly, and sums do not overflow
Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=1000)]  #: for people
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
FilePath = Annotated[str, Meta(max_length=PATH_MAX, pattern="^[^\x00-\x1f\x7f]+$")]  #: on a node, for people
Endpoint = Annotated[str, Meta(max_length=64, pattern=r"^[0-9.]+:[0-9]{1,5}$")]  #: IPv4 address and port
Versions = Annotated[dict[Name, Name], Meta(max_length=16)]  #: of what is installed on a node, by name


class StepTimes(msgspec.Struct, frozen=True, array_like=True):
    """A node computed ``samples`` in ``steps`` for ``own_s`` of ``wall_s``; the rest it waited for other nodes.
    ``equal_shares``: samples are not divided by the nodes' times; ``limit_loss``: the part of a step's time that is
    lost because a rank's share may not grow further.
    """

    steps: Count
    samples: Count
    own_s: Seconds
    wall_s: Seconds
    equal_shares: bool = False
    limit_loss: Annotated[float, Meta(ge=0, le=1)] = 0.0
