"""``pilot metrics``: a pool's metrics for Prometheus."""

from __future__ import annotations

import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click

from pilot.cli.asking import find_run_dir, pool_at, run_dir_option
from pilot.core.errors import PilotError, UserError

TOKEN_FILE = "metrics-token"
PEER_TIMEOUT_S = 10.0
LOOPBACK = "127.0.0.1"


@click.command("metrics")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve the metrics on this port until interrupted (0: any free port).",
)
@click.option(
    "--address",
    metavar="ADDRESS",
    help="With --port: the address to listen on.  [default: 127.0.0.1]",
)
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
    if port is None:
        click.echo(_text(root), nl=False)
        return
    token, address = _token(root), address or LOOPBACK
    try:
        server = ThreadingHTTPServer((address, port), _handler(root, token))
    except OSError as error:
        raise UserError(f"cannot listen on {address}:{port}: {error.strerror or error}") from None
    server.daemon_threads = True
    click.echo(f"serving metrics at http://{address}:{server.server_port}/metrics; the token is in {root / TOKEN_FILE}")
    try:
        server.serve_forever()
    finally:
        server.server_close()


def _text(root: Path) -> str:
    from pilot.cli.prometheus import exposition

    return exposition(pool_at(root).status())


def _token(root: Path) -> str:
    """The run directory's token; created if there is none."""
    from pilot.host.files import publish

    path = root / TOKEN_FILE
    if path.exists():
        return path.read_text().strip()
    token = secrets.token_urlsafe(32)
    try:
        publish(path, token.encode())
    except OSError as error:
        raise UserError(f"cannot store the token in {path}: {error.strerror}; without --port it needs none") from None
    return token


def _handler(root: Path, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = PEER_TIMEOUT_S

        def do_GET(self) -> None:  # http.server's name
            given = self.headers.get("Authorization", "")
            if not secrets.compare_digest(given.encode(), f"Bearer {token}".encode()):
                self._answer(401, "the token is missing or wrong\n")
            elif self.path != "/metrics":
                self._answer(404, "not found; try /metrics\n")
            else:
                try:
                    self._answer(200, _text(root))
                except PilotError as error:
                    self._answer(503, f"{error}\n")

        def log_message(self, format: str, *args: object) -> None:  # http.server's name
            del format, args

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
