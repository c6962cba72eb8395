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
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from plateau_jax.tools.design.answers import ANSWERS, choices_per_field

_LOOPBACK = "127.0.0.1"
_PAGE = Path(__file__).with_name("page")


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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the browser closed; print other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            traceback.print_exc()


class _Handler(SimpleHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]  (a handler has no other server)

    # Windows may have different types, and a browser runs no module of another type.
    extensions_map = {  # noqa: RUF012 (as in the base class)
        ".css": "text/css",
        ".html": "text/html",
        ".js": "text/javascript",
        ".svg": "image/svg+xml",
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=str(_PAGE))

    def do_GET(self) -> None:
        if not self._is_local():
            self._reject_stranger()
        elif self.path == "/start":
            self._send_json(200, self.server.initial_state)
        else:
            super().do_GET()

    def do_POST(self) -> None:
        if not self._is_local():
            self._reject_stranger()
            return
        try:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = ANSWERS[self.path](json.loads(body))
        except Exception as error:  # a bug, or a file that is not a saved page
            traceback.print_exc()
            self._send_json(400, {"error": f"{type(error).__name__}: {error}"})
        else:
            self._send_json(200, answer)

    def _is_local(self) -> bool:
        """Return False for other hosts: a foreign domain may resolve to this address."""
        host = self.headers.get("Host", "")
        return re.fullmatch(r"(127\.0\.0\.1|localhost)(:\d+)?", host) is not None

    def _reject_stranger(self) -> None:
        self.send_error(403, f"The page is for this machine only: open {self.server.address}")

    def _send_json(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

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
