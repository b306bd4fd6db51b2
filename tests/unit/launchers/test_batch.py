"""Users' own batch scripts, for sbatch, qsub and bsub."""

from __future__ import annotations

import subprocess

import pytest

from launchers.batch import batch_script
from pilot.core.errors import UserError
from pilot.site.site import Site
from pilot.site.site_files import load_site
from tests.golden import check

LSF = Site(name="lsf", scheduler="lsf", queue="killable", account="abc", launcher="jsrun", grace_s=0)
SITES = [*(load_site(name) for name in ("slurm_lab", "delta", "perlmutter", "polaris", "derecho")), LSF]


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.name)
def test_the_script(site: Site) -> None:
    text = batch_script(site, "/shared/run/connection.json")
    check(f"own-{site.name}.sh", text)
    assert "@" not in text.replace("USR1@", "")


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.name)
def test_the_script_is_valid_shell(site: Site) -> None:
    subprocess.run(["bash", "-n"], input=batch_script(site, "/shared/c.json"), text=True, check=True)


def test_a_path_with_spaces_stays_one_argument() -> None:
    assert "--connection '/shared/my run/c.json'" in batch_script(LSF, "/shared/my run/c.json")


def test_a_site_without_a_batch_system_has_none() -> None:
    with pytest.raises(UserError, match=r"has no batch system; run: pilot agent --connection c\.json"):
        batch_script(load_site("local"), "c.json")
