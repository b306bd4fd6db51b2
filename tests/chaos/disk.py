"""A small disk for a trainer's checkpoints, which can be full for a while. Only root can mount it."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

SIZE = "4m"


def unavailable(folder: Path) -> str:
    """Why no small disk can be mounted here; empty if one can."""
    try:
        SmallDisk(folder / "try").close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no tmpfs can be mounted here ({error.__class__.__name__})"
    return ""


class SmallDisk:
    """A tmpfs at ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "pilot-chaos", folder]
        subprocess.run(command, check=True, capture_output=True)

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with suppress(OSError), (self.folder / "ballast").open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass

    def empty(self) -> None:
        """Free the space again."""
        (self.folder / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it, even if it is still in use."""
        if os.path.ismount(self.folder):
            subprocess.run(["umount", "--lazy", self.folder], check=True, capture_output=True)
