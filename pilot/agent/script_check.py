"""Checks a worker's script beside it, in a process of the worker's interpreter: :mod:`pilot.agent.check_program`."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from pilot.agent.fork_server import THREAD_VARIABLES
from pilot.agent.shortage import when_possible
from pilot.core.errors import one_line
from pilot.host import private_folder, proc
from pilot.protocol import wire
from pilot.rundir import trainer_folder
from pilot.submission.submission import CheckJob

LOG = "check.log"
"""The file in the trainer's folder with the output of checks of its script."""

PATIENCE_S = 100.0
"""The time that a check may take beyond its limit: for imports, and to end its processes."""

_MARK = "PILOT_CHECK_MARK"
"""The variable that identifies a check, in the environment of all its processes."""


class ScriptCheck:
    """A running check, which takes about ``limit_s`` at most. ``done`` is called with its result unless it was killed.

    ``environment`` is that of the fork server that starts the worker, ``kept_in`` the folder of earlier verdicts.
    """

    def __init__(
        self,
        order: wire.StartWorker,
        limit_s: float,
        environment: Mapping[str, str],
        kept_in: Path,
        done: Callable[[wire.ScriptChecked], None],
    ) -> None:
        self.pid = 0
        self.trainer = order.trainer
        self._order = order
        self._done: Callable[[wire.ScriptChecked], None] | None = done
        self._mark = secrets.token_hex(8)
        self._job = CheckJob(order.launch, limit_s, str(kept_in))
        given = {name: value for name, value in order.launch.environment.items() if name != "PYTHONPATH"}
        self._environment = {**environment, **given, **dict.fromkeys(THREAD_VARIABLES, "1"), _MARK: self._mark}
        self.task = asyncio.get_running_loop().create_task(self._run())

    def kill(self) -> None:
        """End it, and everything that it started."""
        self._done = None
        when_possible(partial(_kill_marked, self._mark))

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._job.limit_s + PATIENCE_S):
                report = json.loads(await self._output())
            found = wire.ScriptChecked(self.trainer, report["result"], report["text"])
        except OSError as error:
            why = "it did not end in time" if isinstance(error, TimeoutError) else f"it could not be run: {error}"
            found = wire.ScriptChecked(self.trainer, "unchecked", why)
        except (ValueError, KeyError, TypeError):
            where = Path(self._order.directory, LOG)
            found = wire.ScriptChecked(self.trainer, "unchecked", f"the check ended without a result, see {where}")
        finally:
            when_possible(partial(_kill_marked, self._mark))
        if self._done is not None:
            self._done(msgspec.structs.replace(found, text=one_line(found.text)))

    async def _output(self) -> bytes:
        with (
            trainer_folder.home(Path(self._order.directory), self._order.uid) as home,
            open(home / LOG, "ab", opener=private_folder.private) as log,
        ):
            process = await asyncio.create_subprocess_exec(
                *(self._order.launch.python, "-P", "-m", "pilot.agent.check_program"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._order.launch.cwd,
                env=self._environment,
                start_new_session=True,
            )
        self.pid = process.pid
        if self._done is None:
            return b""  # it was killed meanwhile, and ends for lack of input
        output, _ = await process.communicate(msgspec.json.encode(self._job))
        return output


def _kill_marked(mark: str) -> None:
    proc.kill(proc.marked(f"{_MARK}={mark}"))
