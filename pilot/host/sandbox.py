"""A sandbox for trial runs of a script: its own namespaces, in which overlays in memory cover all file systems, and
there is no network. So nobody else sees what the script writes, removes or starts.

A directory that cannot be covered is read-only there. The kernel must let users make namespaces and overlays (Linux
5.11, or RHEL 8.5, and ``user.max_user_namespaces`` above 0).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from pilot.host import system

_OF_THE_KERNEL = ("/proc", "/sys", "/dev", "/run/netns")
_NAMESPACES = ("--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_MOST = 100
"""Most directories of one file system that are covered one by one."""


def command(inside: Sequence[str]) -> list[str]:
    """Return the command that runs ``inside`` as the root of a user namespace, in which :func:`enter` can be called."""
    return ["unshare", *_NAMESPACES, *inside]


def enter(folder: Path) -> None:
    """Continue in a child of this process, in a sandbox that ends with it; ``folder`` stays shared with the outside.
    ``OSError`` if this machine does not let us, or the current directory cannot be written there.
    """
    writable = os.access(".", os.W_OK)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    system.leave_namespaces()
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0)
    done = subprocess.run(["sh", "-c", _script(folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(done.stderr.strip().rpartition("\n")[2])
    os.chdir(Path.cwd())
    if writable and not os.access(".", os.W_OK):
        raise OSError(f"{Path.cwd()} cannot be covered by an overlay")


def _script(folder: Path) -> str:
    """Return commands that cover everything; ``folder`` is held open meanwhile and mounted again in its place."""
    own, upper = quote(str(folder)), quote(str(folder / "upper"))
    lines = ["set -e", f"mkdir -p {upper}", f"mount --bind {own} {own}", f"exec 9<{own}"]
    lines += ["mount -t proc proc /proc", f"mount -t tmpfs -o mode=0700 check {upper}"]
    lines += [place.cover(f"{upper}/{number}") for number, place in enumerate(sorted(_places(), key=_turn(folder)))]
    lines += ["mount -t tmpfs -o mode=1777 check /dev/shm", f"mkdir -p {own}"]
    lines += [f"mount -c --bind /proc/self/fd/9 {own}"]
    return "\n".join(lines)


@dataclass(frozen=True)
class _Place:
    """A directory to be covered. ``flags``: of its mount; ``is_mount``: something is mounted just there; ``holds``:
    and below it, so that it can only be made read-only.
    """

    path: str
    flags: str
    is_mount: bool
    holds: bool = False

    def cover(self, layer: str) -> str:
        """Return the commands for that, with the overlay in ``layer``."""
        place = quote(self.path)
        lock = f"mount -o remount,bind,ro,{self.flags} {place}"
        if not self.is_mount:
            lock = f"mount --rbind {place} {place}; {lock}"
        if self.holds:
            return lock
        options = quote(f"userxattr,lowerdir={self.path},upperdir={layer}/u,workdir={layer}/w")
        overlay = f"mkdir -p {layer}/u {layer}/w && mount -t overlay -o {options} check {place} 2>/dev/null"
        return f"{{ {overlay}; }} || {{ {lock}; }}"


def _turn(folder: Path) -> Callable[[_Place], int]:
    """Return the order in which places are covered: those of the overlays after others, read-only ones last."""
    return lambda place: 2 * place.holds + folder.is_relative_to(place.path)


def _places() -> Iterator[_Place]:
    """Yield the directories to cover, of all file systems that this user can reach."""
    mounts = dict(_mounts())
    for path, flags in sorted(mounts.items()):
        prefix = path.rstrip("/") + "/"
        below = [f"{one}/" for one in [*mounts, *_OF_THE_KERNEL] if one != path and one.startswith(prefix)]
        if not below:
            yield _Place(path, flags, is_mount=True)
            continue
        inside = [str(one) for one in _entries(path) if one.is_dir() and not one.is_symlink()]
        free = [one for one in inside if not any(other.startswith(f"{one}/") for other in below)]
        for one in free if len(free) <= _MOST else [one for one in _wanted() if one.startswith(prefix)]:
            yield _Place(one, flags, is_mount=False)
        yield _Place(path, flags, is_mount=True, holds=True)


def _entries(path: str) -> list[Path]:
    try:
        return list(Path(path).iterdir())
    except OSError:
        return []


def _wanted() -> list[str]:
    return [str(one.resolve()) for one in (Path.cwd(), Path.home())]


def _mounts() -> Iterator[tuple[str, str]]:
    """Yield the writable file systems that are not the kernel's, with the flags of each mount but "rw"."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, options = line.split()[4:6]
        path = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), place)
        own = options.split(",")
        if (
            "rw" in own
            and os.access(path, os.X_OK)
            and not f"{path}/".startswith(tuple(f"{one}/" for one in _OF_THE_KERNEL))
        ):
            yield path, ",".join(one for one in own if one != "rw")
