"""Types of nodes: nodes of one type have the same hardware and come from the same queue."""

from __future__ import annotations

from dataclasses import dataclass

from pilot.core.ids import TrainerId


@dataclass(frozen=True, slots=True)
class NodeType:
    """What a pilot reports of its node, and what the site says of the nodes of this type."""

    name: str  #: as the site calls it, else made from the hardware; unique in a pool
    accelerator: str = ""  #: the model; "": it has none
    accelerators: int = 0  #: how many
    memory_gb: float = 0.0  #: of one accelerator, or of the node if it has none; 0: not known
    cores: int = 0  #: 0: not known
    charge_factor: float = 1.0  #: node-hours charged per hour


@dataclass(frozen=True, slots=True)
class SlowNode:
    """It counts as slow since ``since_s``: it did ``share`` of what its type does, as ``trainer`` measured."""

    since_s: float
    share: float
    trainer: TrainerId


def type_of(kind: str) -> str:
    """The name of the type that a problem counts as ``kind``."""
    return kind.partition("/")[0]
