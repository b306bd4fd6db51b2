"""``python -m pilot.agent.check_program``: runs ``pilot check`` on a trainer's code as submitted, unless an earlier
verdict still holds. The job is read as JSON from standard input, the result is printed as JSON.

Verdicts are stored by script, arguments and versions. A verdict holds as long as the user's files that the check
really loaded have not changed.
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
from pilot.host import private_folder
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
    """Check, and print the verdict."""
    os.nice(NICE)
    job = msgspec.json.decode(sys.stdin.read(), type=CheckJob)
    try:
        found = checked(job)
    except UserError as error:
        found = Found("unchecked", str(error))
    print(json.dumps({"result": found.result, "text": found.text}))


def checked(job: CheckJob) -> Found:
    """Return an earlier verdict that still holds, or a new one, which is stored unless it is unchecked."""
    copied = script_code.unpack(job.launch.archive, job.launch.code_sha256)
    file = Path(job.kept_in, f"{_key(job.launch)}.json")
    if (earlier := _read(file)) is not None and earlier.files == _versions(earlier.files, copied):
        return earlier
    found = _run(job, copied)
    if found.result != "unchecked":
        with suppress(OSError):  # it is run again next time
            private_folder.make(file.parent)
            publish(file, json.dumps(asdict(found)).encode())
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
    errors = done.stderr.decode(errors="replace")
    sys.stderr.write(f"{errors}{done.stdout.decode(errors='replace')}\n")
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return Found("unchecked", headline(last_words(errors)))
    loaded = {file: sha for file, sha in report["files"].items() if file != as_submitted.__file__}
    as_copied = _versions([file for file in loaded if is_copied(copied, file)], copied)
    result = "passed" if report["passed"] else "differs" if report["script_class"] == "differs" else "unchecked"
    return Found(result, report["text"], script | loaded | as_copied)


def _versions(files: Iterable[str], copied: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of each of these files as the script gets it; files that cannot be read are left out."""
    out = {}
    for file in files:
        with suppress(OSError):
            out[file] = hashlib.sha256(content(copied, file)).hexdigest()
    return out


def _paths(launch: LaunchSpec) -> str:
    return launch.environment.get("PYTHONPATH", "")


def _key(launch: LaunchSpec) -> str:
    """Identify the subject of a verdict, apart from the files."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    about = [launch.script, launch.arguments, launch.cwd, _paths(launch), __version__, sys.version, torch]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]


def _read(file: Path) -> Found | None:
    try:
        return Found(**json.loads(read_regular(file, MOST_BYTES)))
    except (OSError, ValueError, TypeError):
        return None


if __name__ == "__main__":
    main()
