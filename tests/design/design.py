"""The design page's server, run in this process, and requests to it."""

import copy
import http.client
import json
import runpy
import threading
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from plateau_jax import Curve
from plateau_jax.tools.design.answers import describe_curves
from plateau_jax.tools.design.server import Server

PEAK = 3e-4


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@contextmanager
def served(curves: Any = ()) -> Generator[Server]:
    """Run a server on a free port."""
    with Server(0, curves) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def request(
    server: Server, method: str, path: str, body: bytes | None = None, **headers: str | None
) -> Reply:
    """Send a request with these headers besides the usual ones; one that is None is omitted.

    Underscores in the names of headers become hyphens.
    """
    sent: dict[str, str | None] = {"Host": f"127.0.0.1:{server.port}"}
    if body is not None:
        sent["Content-Type"] = "application/json"
        sent["Content-Length"] = str(len(body))
    for name, value in headers.items():
        sent[name.replace("_", "-")] = value
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    with closing(connection):
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(body)
        with connection.getresponse() as reply:
            return Reply(reply.status, dict(reply.headers), reply.read())


def ask(server: Server, path: str, question: Any) -> Any:
    """Ask the server as the page does, and return its answer."""
    reply = request(server, "POST", path, json.dumps(question).encode())
    assert reply.status == 200, reply
    return reply.json


def run_copied(code: str, **names: Any) -> dict[str, Any]:
    """Run code that was copied from the page, as a file; return its names. It finds `names`."""
    with TemporaryDirectory() as folder:
        program = Path(folder) / "copied.py"
        program.write_text(code)
        return runpy.run_path(str(program), names)


def describe_curve(entry: Any) -> Any:
    """Return the answer about a curve and its peak."""
    (answer,) = describe_curves({"curves": [entry]})["curves"]
    return copy.deepcopy(answer)  # the server keeps it


def fault_of(entry: Any) -> Any:
    answer = describe_curve(entry)
    assert "fault" in answer, f"the page accepts {entry}"
    return answer["fault"]


def answer_about(curve: Curve, peak: float = PEAK) -> Any:
    return describe_curve({"curve": curve.to_dict(), "peak": peak})
