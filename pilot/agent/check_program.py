"""``python -m pilot.agent.check_program``: runs ``pilot check`` on a trainer's code as submitted, unless an earlier
verdict still holds. The job is read as JSON from standard input, the result is printed as JSON.

A verdict is kept by script, arguments and versions. It holds as long as the files of the user's that the check really
loaded have not changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from pilot.agent import as_submitted
from pilot.agent.submitted_code import content, is_copied
from pilot.core.errors import UserError
from pilot.core.pool.evidence import headline, last_words
from pilot.core.version import __version__
from pilot.host import private_folder as own_folder
from pilot.host.files import publish, read_regular
from pilot.submission import script_code
from pilot.submission.submission import CheckJob, LaunchSpec

NICE = 10
MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """A verdict: ``result`` is passed, differs or unchecked; ``files``: the versions of what was loaded, by path."""

    result: str
    text: str
    files: dict[str, str] = field(default_factory=dict)


def main() -> None:
    """Check, and print what was found."""
    os.nice(NICE)
    job = msgspec.json.decode(sys.stdin.read(), type=CheckJob)
    try:
        found = checked(job)
    except UserError as error:
        found = Found("unchecked", str(error))
    print(json.dumps({"result": found.result, "text": found.text}))


def checked(job: CheckJob) -> Found:
    """An earlier verdict that still holds, or a new one, which is kept if it is one."""
    copied = script_code.unpack(job.launch.archive, job.launch.code_sha256)
    kept = Path(job.kept_in, f"{_key(job.launch)}.json")
    if (earlier := _read(kept)) is not None and earlier.files == _versions(earlier.files, copied):
        return earlier
    found = _run(job, copied)
    if found.result != "unchecked":
        with suppress(OSError):  # it is run again next time
            own_folder.make(kept.parent)
            publish(kept, json.dumps(asdict(found)).encode())
    return found


def _run(job: CheckJob, copied: Mapping[str, bytes]) -> Found:
    launch = job.launch
    script = _versions([launch.script], copied)
    command = [sys.executable, "-P", "-m", "pilot", "check", "--json", "--limit-s", f"{job.limit_s:g}"]
    as_is = json.dumps([launch.script, launch.archive, launch.code_sha256, _paths(launch)])
    done = subprocess.run(
        [*command, as_submitted.__file__, "--", *launch.arguments],
        capture_output=True,
        env={**os.environ, as_submitted.VARIABLE: as_is},
        check=False,
    )
    said = done.stderr.decode(errors="replace")
    sys.stderr.write(f"{said}{done.stdout.decode(errors='replace')}\n")
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return Found("unchecked", headline(last_words(said)))
    loaded = {file: sha for file, sha in told["files"].items() if file != as_submitted.__file__}
    as_copied = _versions([file for file in loaded if is_copied(copied, file)], copied)
    result = "passed" if told["passed"] else "differs" if told["script_class"] == "differs" else "unchecked"
    return Found(result, told["text"], script | loaded | as_copied)


def _versions(files: Iterable[str], copied: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of each of these files as the script gets it; without those that cannot be read."""
    out = {}
    for file in files:
        with suppress(OSError):
            out[file] = hashlib.sha256(content(copied, file)).hexdigest()
    return out


def _paths(launch: LaunchSpec) -> str:
    return launch.environment.get("PYTHONPATH", "")


def _key(launch: LaunchSpec) -> str:
    """What a verdict is about, but for the files."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    about = [launch.script, launch.arguments, launch.cwd, _paths(launch), __version__, sys.version, torch]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]


def _read(kept: Path) -> Found | None:
    try:
        return Found(**json.loads(read_regular(kept, MOST_BYTES)))
    except (OSError, ValueError, TypeError):
        return None


if __name__ == "__main__":
    main()
