"""``pilot metrics``: what a Prometheus server reads, and who may read it."""

from __future__ import annotations

import math
import threading
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pilot.cli import metrics
from pilot.core.errors import PilotError
from pilot.protocol.pool_status import PoolStatus
from tests.unit.cli.statuses import STATUS, TRAINER

TIMEOUT_S = 30.0


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Value by name and labels, parsed by Prometheus's own client."""
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.values()))): s.value for family in families for s in family.samples}


def test_what_prometheus_reads() -> None:
    odd = msgspec.structs.replace(TRAINER, trainer='a "name"', samples_per_s=123.0, metrics={"loss": None})
    status = msgspec.structs.replace(STATUS, trainers=[TRAINER, odd])
    read = samples(generate_latest(metrics.registry(lambda: status)).decode())
    assert read["pilot_trainer_steps_total", ("vit",)] == 40
    assert read["pilot_trainer_phase", ("failed", "vit")] == 1
    assert read["pilot_trainer_phase", ("running", "vit")] == 0
    assert ("pilot_trainer_samples_per_second", ("vit",)) not in read  # it has no rate
    assert read["pilot_trainer_samples_per_second", ('a "name"',)] == 123.0
    assert read["pilot_trainer_metric", ("loss", "vit")] == 0.25
    assert math.isnan(read["pilot_trainer_metric", ('a "name"', "loss")])
    assert read["pilot_pool_node_seconds_total", ()] == STATUS.node_seconds


def test_only_who_has_the_token_reads(tmp_path: Path) -> None:
    answers = iter([STATUS])

    def ask() -> PoolStatus:
        if (status := next(answers, None)) is None:
            raise PilotError("the coordinator does not answer")
        return status

    token = metrics.token_of(tmp_path)
    assert metrics.token_of(tmp_path) == token
    assert (tmp_path / metrics.TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    with metrics.listening("127.0.0.1", 0, metrics.guarded(metrics.registry(ask), token)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def get(given: str | None) -> tuple[int, str]:
            headers = {} if given is None else {"Authorization": f"Bearer {given}"}
            request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/metrics", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        try:
            assert get(None)[0] == 401
            assert get(token + "x")[0] == 401
            status, text = get(token)
            assert (status, samples(text)["pilot_trainer_steps_total", ("vit",)]) == (200, 40)
            assert get(token) == (503, "the coordinator does not answer\n")
        finally:
            server.shutdown()
            thread.join()
