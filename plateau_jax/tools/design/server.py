"""The HTTP server of the design page, for browsers on this machine only (the loopback address)."""

import json
import os
import re
import signal
import sys
import threading
import traceback
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from plateau_jax.tools.design.answers import ANSWERS, choices_per_field

MAX_BODY_BYTES = 8 << 20
"""The largest question: twelve curves of thousands of stages."""

_LOOPBACK = "127.0.0.1"

_POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

_TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}


class Server(ThreadingHTTPServer):
    """An HTTP server of the page and its answers, with one thread per connection.

    Args:
        port: The port; 0 chooses a free one.
        curves: The page's initial curves, as `answers.initial_curves` returns them.
    """

    # The kernel drops connections beyond this backlog, and a browser retries only after seconds.
    request_queue_size = 128
    # On Windows, this would let the server take a port that another program is listening on.
    allow_reuse_address = os.name != "nt"

    def __init__(self, port: int, curves: Sequence[Mapping[str, Any]] = ()) -> None:
        try:
            super().__init__((_LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            raise OSError(f"--port {port}: {error}; --port 0 chooses a free one") from None
        self.port: int = self.server_address[1]
        self.address = f"http://{_LOOPBACK}:{self.port}/"
        self.initial_state: dict[str, Any] = {
            "curves": list(curves),
            "shapes": choices_per_field(),
        }
        folder = files("plateau_jax.tools.design") / "page"
        # Read once, so that the path in a request is never used as a path on the disk.
        self.files = {f"/{file.name}": file.read_bytes() for file in folder.iterdir()}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the browser closed; print other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            traceback.print_exc()


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]  (a handler has no other server)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            path = "/index.html"
        if not self._is_local():
            self._reject_stranger()
        elif path == "/start":
            self._send_json(200, self.server.initial_state)
        elif path in self.server.files:
            content_type = _TYPES[path.rpartition(".")[2]]
            self._send(200, self.server.files[path], f"{content_type}; charset=utf-8")
        else:
            self._reject_path()

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not self._is_local():
            self._reject_stranger()
        elif self.path not in ANSWERS:
            self._reject_path()
        elif re.fullmatch(r"\d{1,12}", length) is None or int(length) > MAX_BODY_BYTES:
            self._reject(413, f"Content-Length must be at most {MAX_BODY_BYTES}")
        else:
            self._answer(self.rfile.read(int(length)))

    def _answer(self, body: bytes) -> None:
        try:
            answer = ANSWERS[self.path](json.loads(body))
        except (TypeError, ValueError) as error:
            self._reject(400, str(error))
        except Exception:  # a bug: the page shows the message, and the server continues
            traceback.print_exc()
            self._reject(500, "this request failed; the terminal shows why")
        else:
            self._send_json(200, answer)

    def _is_local(self) -> bool:
        """Return False for other hosts and pages.

        A foreign domain may resolve to this address (DNS rebinding). The port may differ, as in a
        tunnel.
        """
        host = self.headers.get("Host", "")
        is_loopback = re.fullmatch(r"(127\.0\.0\.1|localhost)(:\d+)?", host) is not None
        return is_loopback and self.headers.get("Origin") in (None, f"http://{host}")

    # Replies

    def _reject_stranger(self) -> None:
        self._reject(403, f"this server answers to its own page only: open {self.server.address}")

    def _reject_path(self) -> None:
        self._reject(404, f"there is no {self.path}; the page is at {self.server.address}")

    def _reject(self, status: int, message: str) -> None:
        self._send_json(status, {"error": message})

    def _send_json(self, status: int, content: Any) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Log nothing: the terminal is for the address and for errors."""


def serve(curves: Sequence[Mapping[str, Any]], port: int, *, browser: bool) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        OSError: The port is in use, not permitted, or outside 0 … 65535.
    """
    with Server(port, curves) as server, suppress(KeyboardInterrupt):
        print(f"The page is at {server.address} (Ctrl-C stops the server)", flush=True)
        # The command line lets SIGPIPE end the process. Here closing a tab midway would do so.
        if hasattr(signal, "SIGPIPE"):
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        if browser:
            # In a thread, because opening a browser may block, and the page needs a running server.
            threading.Thread(target=webbrowser.open, args=[server.address], daemon=True).start()
        server.serve_forever()
