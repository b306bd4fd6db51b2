"""The accounts of a lab: the settings of slurmdbd and of its database, MariaDB."""

from __future__ import annotations

import socket
from pathlib import Path

COMMANDS = ("slurmdbd", "mariadbd", "mariadb-install-db")
NOTHING = "AccountingStorageType=accounting_storage/none"
"""The line of ``slurm.conf`` for a lab without accounts."""


def slurm_conf(folder: Path, port: int) -> str:
    """Lines of ``slurm.conf`` for accounts whose limits are enforced, in a slurmdbd that listens on ``port``."""
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.socket
AccountingStorageEnforce=associations,limits,qos"""


def write_slurmdbd_conf(folder: Path, port: int) -> None:
    """Write ``slurmdbd.conf``, which only its user may read."""
    conf = folder / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(f"""\
DbdHost={socket.gethostname().split(".")[0]}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
""")


def database_socket(folder: Path) -> Path:
    """Where the database listens; nowhere else."""
    return folder / "mariadbd.socket"


def new_database(folder: Path) -> list[str]:
    """The command that creates the database."""
    return ["mariadb-install-db", "--auth-root-authentication-method=normal", "--skip-test-db", *_options(folder)]


def start_database(folder: Path) -> list[str]:
    """The command that starts the database in the background."""
    own = [f"--socket={database_socket(folder)}", f"--log-error={folder / 'mariadbd.log'}"]
    return ["setsid", "--fork", "mariadbd", *_options(folder), "--skip-networking", *own]


def _options(folder: Path) -> list[str]:
    """It need not survive a failure of this machine: it is made for one test. A database that starts empties its folder
    for temporary tables, so each needs its own.
    """
    fast = ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-doublewrite=0"]
    small = ["--innodb-log-file-size=4M", "--innodb-buffer-pool-size=16M"]
    folders = [f"--datadir={folder / 'database'}", f"--tmpdir={folder}"]
    return ["--no-defaults", "--user=root", *folders, *fast, *small, "--sync-frm=0"]
