"""The server of the page: on the loopback address, for this machine's browser alone."""

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

from plateau_jax.design.answers import ANSWERS, MOST_CURVES, answer

PORT = 8700
MOST_BYTES = 1 << 20
"""Of a request's body."""

_DISCARDED = 64 * MOST_BYTES
"""So much of a body that is too large is read, so that its sender reads the answer."""

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
    """Serves the page and its answers; each connection has a thread.

    Args:
        port: 0 takes a free one.
        start: The curves to begin with, as the page takes them.
    """

    daemon_threads = True
    request_queue_size = (
        128  # of connections that wait; beyond that the kernel makes a browser wait for seconds
    )
    allow_reuse_address = os.name != "nt"  # there it would take a port that another program listens on

    def __init__(self, port: int, start: Sequence[Mapping[str, Any]] = ()) -> None:
        if not 0 <= port <= 65535:
            raise ValueError(f"--port {port} must lie in 0 … 65535; 0 takes a free one")
        try:
            super().__init__((_LOOPBACK, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise OSError(f"--port {port} is in use: take another, or --port 0 for a free one") from None
            raise OSError(f"--port {port}: {error.strerror}") from None
        self.port: int = self.server_address[1]
        self.start = {"curves": list(start), "most": MOST_CURVES}
        pages = files("plateau_jax.design") / "page"
        self.pages = {f"/{file.name}": file.read_bytes() for file in pages.iterdir()}
        self.pages["/"] = self.pages["/page.html"]

    @property
    def address(self) -> str:
        return f"http://{_LOOPBACK}:{self.port}/"

    @property
    def hosts(self) -> list[str]:
        """What a browser on this machine says in its Host header."""
        names = _LOOPBACK, "localhost"
        return [f"{name}:{self.port}" for name in names] + (list(names) if self.port == 80 else [])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that its browser ended is no error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()


class _Refusal(Exception):
    """What the server does not do, as an answer."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]  (it serves no other)
    server_version = "plateau_jax"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60  # seconds: a connection that says nothing ends, and with it its thread

    def do_GET(self) -> None:
        self._answered(self._page)

    def do_POST(self) -> None:
        self._answered(self._answer)

    def _answered(self, find: Callable[[bytes], tuple[str, bytes]]) -> None:
        try:
            body = self._body()  # in any case: what is left unread may keep the answer from its reader
            self._check_host()
            kind, content = find(body)
        except _Refusal as refusal:
            self.send_error(refusal.status, str(refusal))
        except (ConnectionError, TimeoutError):
            raise
        except Exception:  # a fault of ours: the page says so, and the server goes on
            traceback.print_exc()
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "this failed; the terminal shows why")
        else:
            self._send(HTTPStatus.OK, kind, content)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length")
        if "Transfer-Encoding" in self.headers or (length is None and self.command == "POST"):
            raise _Refusal(
                HTTPStatus.LENGTH_REQUIRED, "send the body with a Content-Length, without Transfer-Encoding"
            )
        length = "0" if length is None else length
        if not (length.isascii() and length.isdigit() and len(length) < 20):
            raise _Refusal(HTTPStatus.BAD_REQUEST, f"Content-Length = {length!r} must be a number of bytes")
        size = int(length)
        if size <= MOST_BYTES:
            body = self.rfile.read(size)
            if len(body) < size:
                raise _Refusal(
                    HTTPStatus.BAD_REQUEST,
                    f"the body ended after {len(body)} of {size} bytes",
                )
            return body
        left = min(size, _DISCARDED)
        while left > 0 and (part := self.rfile.read(min(left, 1 << 16))):
            left -= len(part)
        raise _Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of {size} bytes is too large: at most {MOST_BYTES}"
        )

    def _check_host(self) -> None:
        """A page from elsewhere may have given its own name this address (DNS rebinding)."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            raise _Refusal(
                HTTPStatus.FORBIDDEN, f"this server answers to {self.server.address} only: open that address"
            )

    def _page(self, _: bytes) -> tuple[str, bytes]:
        path = self.path.partition("?")[0]
        if path == "/start":
            return "application/json", json.dumps(self.server.start).encode()
        if path in ANSWERS:
            raise _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes POST")
        if path not in self.server.pages:
            raise _Refusal(HTTPStatus.NOT_FOUND, f"there is no {path}; the page is at {self.server.address}")
        return _TYPES["html" if path == "/" else path.rpartition(".")[2]], self.server.pages[path]

    def _answer(self, body: bytes) -> tuple[str, bytes]:
        origin = self.headers.get("Origin")
        if origin is not None and origin not in [f"http://{host}" for host in self.server.hosts]:
            raise _Refusal(HTTPStatus.FORBIDDEN, f"this server answers to its own page only, not to {origin}")
        path = self.path.partition("?")[0]
        if path in self.server.pages or path == "/start":
            raise _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes GET")
        if path not in ANSWERS:
            raise _Refusal(HTTPStatus.NOT_FOUND, f"there is no {path}; the page is at {self.server.address}")
        if self.headers.get_content_type() != "application/json":
            raise _Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
        try:
            return "application/json", json.dumps(answer(path, body)).encode()
        except (TypeError, ValueError) as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None

    def _refuse_method(self) -> None:
        def refuse(_: bytes) -> tuple[str, bytes]:
            raise _Refusal(
                HTTPStatus.METHOD_NOT_ALLOWED, f"{self.command} is not answered here: GET and POST are"
            )

        self._answered(refuse)

    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse_method

    def _send(self, status: HTTPStatus, kind: str, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """An answer in JSON. The base class calls it too, for a request that it can't read."""
        self.close_connection = True  # a body may be left whose length is not known
        self.request_version = self.protocol_version  # an answer to a version before 1.0 would have no status
        status = HTTPStatus(code)
        allow = {"Allow": "GET, POST"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        content = json.dumps({"error": message or status.phrase}).encode()
        self._send(status, "application/json", content, **allow)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Nothing: the terminal is for the address and for errors."""


def serve(start: Sequence[Mapping[str, Any]], port: int, *, browser: bool) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        OSError: The port can't be had.
        ValueError: It is none.
    """
    try:
        with Server(port, start) as server:
            print(f"The page is at {server.address} (Ctrl-C ends it)", flush=True)
            if hasattr(signal, "SIGPIPE"):  # a tab that closes in the middle of an answer ends nothing
                signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            if browser:
                # In a thread: the server must run before the browser asks, and a browser may start slowly.
                threading.Thread(target=webbrowser.open, args=[server.address], daemon=True).start()
            server.serve_forever()
    except KeyboardInterrupt:
        _say("\nThe page has ended.")


def _say(text: str) -> None:
    """Print a line, if standard output still has a reader."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # Python would write the line again when it ends, and fail
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
