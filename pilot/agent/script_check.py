"""Checks a worker's script beside it, in a process of the worker's interpreter: :mod:`pilot.agent.check_program`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from pilot.agent.check_program import CheckJob
from pilot.agent.worker import kill_session
from pilot.core.errors import one_line
from pilot.io import own_folder, trainer_folder, wire

LOG = "check.log"
"""In the trainer's folder: what checks of its script have printed."""


class ScriptCheck:
    """A check that runs, for at most ``limit_s``. ``done`` is called with its result, unless it was killed.

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
        self._done = done
        given = dict(order.environment)
        paths, code = given.pop("PYTHONPATH", ""), (order.code, order.code_sha256)
        self._job = CheckJob(order.script, order.arguments, order.cwd, *code, paths, limit_s, str(kept_in))
        self._environment = {**environment, **given}
        self.task = asyncio.get_running_loop().create_task(self._run())

    def kill(self) -> None:
        """End it, and everything that it started."""
        self._done = lambda _: None
        kill_session(self.pid)

    async def _run(self) -> None:
        try:
            said = await self._said()
            found = wire.ScriptChecked(self.trainer, said["result"], said["text"])
        except OSError as error:
            found = wire.ScriptChecked(self.trainer, "unchecked", f"it cannot be started: {error}")
        except (ValueError, KeyError, TypeError, msgspec.ValidationError):
            where = Path(self._order.directory, LOG)
            found = wire.ScriptChecked(self.trainer, "unchecked", f"the check ended without a result, see {where}")
        self._done(msgspec.structs.replace(found, text=one_line(found.text)))

    async def _said(self) -> Any:
        folder = Path(self._order.directory)
        with (
            trainer_folder.home(folder, self._order.uid) as home,
            open(home / LOG, "ab", opener=own_folder.private) as log,
        ):
            process = await asyncio.create_subprocess_exec(
                *(self._order.python, "-P", "-m", "pilot.agent.check_program"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._order.cwd,
                env=self._environment,
                start_new_session=True,
            )
        self.pid = process.pid
        said, _ = await process.communicate(json.dumps(asdict(self._job)).encode())
        with suppress(ProcessLookupError):
            kill_session(self.pid)
        return json.loads(said)
