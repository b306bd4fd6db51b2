"""Where the coordinator listens, and how agents reach it."""

from __future__ import annotations

import psutil
import pytest

from pilot.core.errors import UserError
from pilot.site.addresses import advertise_address, bind_address
from pilot.site.site import Site


def site(**fields: object) -> Site:
    return Site(**{"name": "s", "scheduler": "slurm", **fields})


def test_where_to_listen_and_how_to_be_reached() -> None:
    assert bind_address(site(scheduler="local")) == "127.0.0.1"
    assert advertise_address(site(scheduler="local")) == "127.0.0.1"
    assert bind_address(site()) == "0.0.0.0"
    assert advertise_address(site()) not in ("0.0.0.0", "")
    assert bind_address(site(bind_address="127.0.0.2")) == "127.0.0.2"
    assert bind_address(site(bind_interface="lo")) == "127.0.0.1"
    assert advertise_address(site(advertise_interface="lo")) == "127.0.0.1"


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UserError, match="no network interface 'ib7'; it has: ") as caught:
        bind_address(site(bind_interface="ib7"))
    assert all(name in str(caught.value) for name in psutil.net_if_addrs())
