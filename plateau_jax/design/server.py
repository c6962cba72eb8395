"""The HTTP server of the design page, on the loopback address: for browsers on this machine only."""

import errno
import json
import os
import signal
import socketserver
import sys
import threading
import traceback
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from typing import Any

from plateau_jax.design.answers import ANSWERS, answer_request
from plateau_jax.design.forecasts import LARGE_QUESTIONS
from plateau_jax.design.questions import MAX_CURVES
from plateau_jax.design.shape_choices import choices_per_field

PORT = 8700
MAX_BODY_BYTES = 1 << 20

MAX_LOG_BYTES = 64 * MAX_BODY_BYTES
"""The limit for a log: 50 000 rows of a trainer take some 10 MB."""

_MAX_DISCARDED_BYTES = 2 * MAX_LOG_BYTES
"""How much of an oversized body is read and discarded: clients send all of it before they read the answer."""

_LOOPBACK = "127.0.0.1"

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Server(socketserver.ThreadingTCPServer):
    """An HTTP server of the page and its answers, with one thread per connection.

    Args:
        port: The port; 0 chooses a free one.
        curves: The page's initial curves, as `answers.initial_curves` returns them.
    """

    daemon_threads = True
    # The kernel drops connections beyond this backlog, and a browser retries only after seconds.
    request_queue_size = 128
    # On Windows, this would let the server take a port that another program is listening on.
    allow_reuse_address = os.name != "nt"

    def __init__(self, port: int, curves: Sequence[Mapping[str, Any]] = ()) -> None:
        if not 0 <= port <= 65535:
            raise ValueError(f"--port {port} must lie in 0 … 65535; 0 chooses a free one")
        try:
            super().__init__((_LOOPBACK, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise OSError(
                    f"--port {port} is in use: choose another, or --port 0 for a free one"
                ) from None
            raise OSError(f"--port {port}: {error.strerror}") from None
        self.port: int = self.server_address[1]
        self.initial_state = {
            "curves": list(curves),
            "max_curves": MAX_CURVES,
            "max_log_bytes": MAX_LOG_BYTES,
            "shapes": choices_per_field(),
        }
        folder = files("plateau_jax.design") / "page"
        # Reading the files once means that a request's path is never used as a path on the disk.
        self.files = {f"/{file.name}": file.read_bytes() for file in folder.iterdir()}
        self.files["/"] = self.files["/page.html"]

    @property
    def address(self) -> str:
        return f"http://{_LOOPBACK}:{self.port}/"

    @property
    def hosts(self) -> list[str]:
        """The Host headers that browsers on this machine send. They omit the default port, 80."""
        names = _LOOPBACK, "localhost"
        return [f"{name}:{self.port}" for name in names] + (list(names) if self.port == 80 else [])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the browser closed; print other errors."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()


class _Rejection(Exception):
    """A rejected request, with the status and the message of its answer."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]  (a handler has no other server)
    server_version = "plateau_jax"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60  # seconds until an idle connection is closed, which ends its thread

    def do_GET(self) -> None:
        self._respond(self._file)

    def do_POST(self) -> None:
        self._respond(self._answer)

    def _respond(self, handle: Callable[[bytes], tuple[str, bytes]]) -> None:
        """Send what `handle` makes of the body: a content type and the content."""
        try:
            # Read the body before rejecting anything: closing a socket with unread data resets the
            # connection, and the browser would not see the answer.
            body = self._read_body()
            self._check_host()
            content_type, content = handle(body)
        except _Rejection as rejection:
            self.send_error(rejection.status, str(rejection))
        except (ConnectionError, TimeoutError):
            raise
        except Exception:  # a bug: the page shows the message, and the server continues
            traceback.print_exc()
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "this request failed; the terminal shows why")
        else:
            self._send(HTTPStatus.OK, content_type, content)

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length")
        if "Transfer-Encoding" in self.headers or (length is None and self.command == "POST"):
            raise _Rejection(
                HTTPStatus.LENGTH_REQUIRED, "send the body with a Content-Length, without Transfer-Encoding"
            )
        length = "0" if length is None else length
        if not (length.isascii() and length.isdigit() and len(length) < 20):
            raise _Rejection(HTTPStatus.BAD_REQUEST, f"Content-Length = {length!r} must be a number of bytes")
        size, limit = int(length), self._body_limit()
        if size <= limit:
            body = self.rfile.read(size)
            if len(body) < size:
                raise _Rejection(HTTPStatus.BAD_REQUEST, f"the body ended after {len(body)} of {size} bytes")
            return body
        remaining = min(size, _MAX_DISCARDED_BYTES)
        while remaining > 0 and (part := self.rfile.read(min(remaining, 1 << 16))):
            remaining -= len(part)
        raise _Rejection(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a body of {size} bytes is too large: at most {limit}",
        )

    def _body_limit(self) -> int:
        """Return the limit of this request: only the page itself may send as much as a log."""
        try:
            self._check_host()
            self._check_origin()
        except _Rejection:
            return MAX_BODY_BYTES
        return MAX_LOG_BYTES if self._route() in LARGE_QUESTIONS else MAX_BODY_BYTES

    def _route(self) -> str:
        return self.path.partition("?")[0]

    def _check_host(self) -> None:
        """Reject other hosts: an attacker's domain may resolve to this address (DNS rebinding)."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            raise _Rejection(
                HTTPStatus.FORBIDDEN, f"this server answers to {self.server.address} only: open that address"
            )

    def _check_origin(self) -> None:
        origin = self.headers.get("Origin")
        if origin is not None and origin not in [f"http://{host}" for host in self.server.hosts]:
            raise _Rejection(
                HTTPStatus.FORBIDDEN, f"this server answers to its own page only, not to {origin}"
            )

    def _file(self, _: bytes) -> tuple[str, bytes]:
        path = self._route()
        if path == "/start":
            return "application/json", json.dumps(self.server.initial_state).encode()
        if path in ANSWERS:
            raise _Rejection(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes POST")
        if path not in self.server.files:
            raise _Rejection(
                HTTPStatus.NOT_FOUND, f"there is no {path}; the page is at {self.server.address}"
            )
        return _TYPES["html" if path == "/" else path.rpartition(".")[2]], self.server.files[path]

    def _answer(self, body: bytes) -> tuple[str, bytes]:
        self._check_origin()
        path = self._route()
        if path in self.server.files or path == "/start":
            raise _Rejection(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes GET")
        if path not in ANSWERS:
            raise _Rejection(
                HTTPStatus.NOT_FOUND, f"there is no {path}; the page is at {self.server.address}"
            )
        if self.headers.get_content_type() != "application/json":
            raise _Rejection(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
        try:
            return "application/json", json.dumps(answer_request(path, body)).encode()
        except (TypeError, ValueError) as error:
            raise _Rejection(HTTPStatus.BAD_REQUEST, str(error)) from None

    def _refuse_method(self) -> None:
        def reject(_: bytes) -> tuple[str, bytes]:
            raise _Rejection(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.command} is not allowed: use GET or POST")

        self._respond(reject)

    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse_method

    def _send(self, status: HTTPStatus, content_type: str, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error as JSON. The base class calls this too, for requests that it cannot parse."""
        self.close_connection = True  # unread data may follow, of unknown length
        self.request_version = self.protocol_version  # for HTTP/0.9 the base class would send no status
        status = HTTPStatus(code)
        allow = {"Allow": "GET, POST"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        content = json.dumps({"error": message or status.phrase}).encode()
        self._send(status, "application/json", content, **allow)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Log nothing: the terminal is for the address and for errors."""


def serve(curves: Sequence[Mapping[str, Any]], port: int, *, browser: bool) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        OSError: The port is in use, or not permitted.
        ValueError: The port is outside 0 … 65535.
    """
    try:
        with Server(port, curves) as server:
            print(f"The page is at {server.address} (Ctrl-C stops the server)", flush=True)
            # The command line lets SIGPIPE end the process. Here it would do so when a tab closes midway.
            if hasattr(signal, "SIGPIPE"):
                signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            if browser:
                # In a thread, because opening a browser may block, and the page needs a running server.
                threading.Thread(target=webbrowser.open, args=[server.address], daemon=True).start()
            server.serve_forever()
    except KeyboardInterrupt:
        _print_if_read("\nThe server has stopped.")


def _print_if_read(text: str) -> None:
    """Print a line if standard output still has a reader."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The line is still in Python's buffer: flushing it again at exit would fail.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
