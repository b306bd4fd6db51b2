"""When a worker's checkpoint is written that it was asked for."""

from __future__ import annotations

from unittest.mock import Mock

import torch
from torch import nn

from pilot.core.commands import WriteCheckpoint
from pilot.train.between.between import Between
from pilot.train.node.membership import Seat
from pilot.train.node.node_ties import NodeTies
from pilot.train.ranks.elastic import Elastic
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training


def test_in_the_middle_of_a_step_it_is_written_after_it() -> None:
    """A dead rank's survivors may get the order while they wait for its sums; forward has changed their buffers."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), None, None, LearningRate("none"))
    link, saver = Mock(), Mock(busy=False)
    link.wait.return_value = [WriteCheckpoint("t", "", "its nodes are given back")]
    elastic = Elastic("t", Seat(), link, training, Mock(), saver, 60.0, Mock(), Mock(), NodeTies(), Between())
    elastic.words(0.0)
    saver.write.assert_not_called()
    elastic.settle()
    saver.write.assert_called_once()
    elastic._attend(0.0)
    assert saver.write.call_count == 2
