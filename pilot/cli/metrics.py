"""``pilot metrics``: a pool's metrics for Prometheus (https://prometheus.io/docs/instrumenting/), printed or served."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import click
from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from pilot.cli.asking import run_dir_option
from pilot.client.pools import find_run_dir, pool_at
from pilot.core.errors import PilotError, UserError
from pilot.core.trainer.trainer import Phase
from pilot.host.files import publish
from pilot.protocol.pool_status import PoolStatus, TrainerStatus

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

TOKEN_FILE = "metrics-token"
LOOPBACK = "127.0.0.1"

Value = Callable[[TrainerStatus], float | None]

GAUGES: dict[str, tuple[str, Value]] = {
    "nodes": ("Nodes that are training.", lambda t: len(t.nodes)),
    "nodes_target": ("Nodes that the last plan gave it.", lambda t: len(t.target)),
    "samples_per_second": ("Its rate on its current nodes.", lambda t: t.samples_per_s),
    "epoch": ("Its current epoch, from 0.", lambda t: t.epoch),
    "longest_stall_seconds": ("The longest pause between two steps.", lambda t: t.longest_stall_s),
}
COUNTERS: dict[str, tuple[str, Value]] = {
    "steps": ("Optimizer steps done.", lambda t: t.step),
    "samples": ("Samples used, over all epochs.", lambda t: t.samples),
    "preemptions": ("Nodes preempted with notice.", lambda t: t.preemptions),
    "losses": ("Nodes lost without notice.", lambda t: t.losses),
    "worker_deaths": ("Training processes that ended unexpectedly.", lambda t: t.worker_deaths),
    "lost_steps": ("Completed steps that had to be repeated.", lambda t: t.lost_steps),
}


class PoolCollector(Collector):
    """The metrics of the pool whose status ``ask`` returns."""

    def __init__(self, ask: Callable[[], PoolStatus]) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        """All families, the pool's first."""
        status = self._ask()
        keeper = status.keeper
        yield GaugeMetricFamily("pilot_pool_nodes", "Nodes in the pool.", len(status.pool))
        yield GaugeMetricFamily("pilot_pool_wanted_nodes", "Nodes wanted.", keeper.wanted_nodes)
        yield CounterMetricFamily("pilot_pool_node_seconds", "Node-seconds of the pool.", status.node_seconds)
        if status.utilisation.u is not None:
            what = "Work done, relative to what as many dedicated nodes would have done (FreeTrain eq. 18)."
            yield GaugeMetricFamily("pilot_pool_utilisation_ratio", what, status.utilisation.u)
        jobs = GaugeMetricFamily("pilot_jobs", "The pool's jobs in the queue.", labels=["state"])
        for state, count in (("running", keeper.running), ("pending", keeper.pending), ("leaving", keeper.leaving)):
            jobs.add_metric([state], count)
        yield jobs
        ended = CounterMetricFamily("pilot_jobs_ended", "Jobs that have ended.", labels=["ending"])
        for ending, count in keeper.endings.items():
            ended.add_metric([ending], count)
        yield ended
        yield CounterMetricFamily("pilot_plans", "Plans made.", status.solves.count)
        yield from _of_trainers(status.trainers)


def _of_trainers(trainers: Sequence[TrainerStatus]) -> Iterator[Metric]:
    phases = GaugeMetricFamily("pilot_trainer_phase", "1 for its current phase.", labels=["trainer", "phase"])
    for trainer in trainers:
        for phase in Phase:
            phases.add_metric([trainer.trainer, phase], float(trainer.phase is phase))
    yield phases
    for kind, families in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
        for name, (what, value_of) in families.items():
            family = kind(f"pilot_trainer_{name}", what, labels=["trainer"])
            for trainer in trainers:
                if (value := value_of(trainer)) is not None:
                    family.add_metric([trainer.trainer], value)
            yield family
    reported = GaugeMetricFamily("pilot_trainer_metric", "Metrics reported by the script.", labels=["trainer", "name"])
    for trainer in trainers:
        for name, value in trainer.metrics.items():
            reported.add_metric([trainer.trainer, name], math.nan if value is None else value)
    yield reported


@click.command("metrics")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve the metrics on this port until interrupted (0: any free port).",
)
@click.option("--address", metavar="ADDRESS", help="With --port: the address to listen on.  [default: 127.0.0.1]")
@run_dir_option
def command(port: int | None, address: str | None, run_dir: Path | None) -> None:
    """Print the pool's metrics in Prometheus format, or serve them to a Prometheus server.

    The scraper must send the bearer token stored in metrics-token in the run directory (in Prometheus: authorization,
    credentials_file).

    \b
    Examples:
      pilot metrics
      pilot metrics --port 9101
    """
    if address is not None and port is None:
        raise UserError("--address needs --port: without it the metrics are printed")
    root = find_run_dir(run_dir)
    metrics = registry(lambda: pool_at(root).status())
    if port is None:
        click.echo(generate_latest(metrics).decode(), nl=False)
        return
    with listening(address or LOOPBACK, port, guarded(metrics, token_of(root))) as server:
        url = f"http://{address or LOOPBACK}:{server.server_port}/metrics"
        click.echo(f"serving metrics at {url}; the token is in {root / TOKEN_FILE}")
        server.serve_forever()


def registry(ask: Callable[[], PoolStatus]) -> CollectorRegistry:
    """A registry whose metrics are those of the pool that answers to ``ask``."""
    made = CollectorRegistry(auto_describe=False)
    made.register(PoolCollector(ask))
    return made


def token_of(root: Path) -> str:
    """The run directory's token; created if there is none."""
    path = root / TOKEN_FILE
    if path.exists():
        return path.read_text().strip()
    token = secrets.token_urlsafe(32)
    try:
        publish(path, token.encode())
    except OSError as error:
        raise UserError(f"cannot store the token in {path}: {error.strerror}; without --port it needs none") from None
    return token


def guarded(metrics: CollectorRegistry, token: str) -> WSGIApplication:
    """Prometheus's application, for requests that carry the token; 503 if the coordinator does not answer."""
    application = make_wsgi_app(metrics)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        given = environ.get("HTTP_AUTHORIZATION", "")
        status, text = "401 Unauthorized", "the token is missing or wrong"
        if secrets.compare_digest(given.encode(), f"Bearer {token}".encode()):
            try:
                return application(environ, start_response)
            except PilotError as error:
                status, text = "503 Service Unavailable", str(error)
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    return answer


class _Requests(WSGIRequestHandler):
    timeout = 10.0

    def handle(self) -> None:
        """Answer one request; a peer that is silent or gone is no error."""
        with suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # http.server's name
        del format, args


def listening(address: str, port: int, application: WSGIApplication) -> WSGIServer:
    """A server of ``application``; :class:`UserError` if it cannot listen there."""
    try:
        return make_server(address, port, application, ThreadingWSGIServer, _Requests)
    except OSError as error:
        raise UserError(f"cannot listen on {address}:{port}: {error.strerror or error}") from None
