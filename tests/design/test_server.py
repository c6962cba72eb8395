"""The design page's server: what it serves, what it rejects, and that it survives each rejection."""

import json
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from queue import Queue
from unittest.mock import Mock

import pytest
from support.design.design import ask, request, served

from plateau_jax import PlateauCurve
from plateau_jax.__main__ import main
from plateau_jax.design.server import MAX_BODY_BYTES, Server, serve

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)])
ENTRY = {"curve": CURVE.to_dict(), "peak": 3e-4}
QUESTION = {"curves": [ENTRY], "step": 5, "runs": []}
BODY = json.dumps(QUESTION).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as server:
        yield server


@pytest.fixture(autouse=True)
def check_server_still_answers(server: Server) -> Iterator[None]:
    yield
    assert ask(server, "/page", QUESTION)["curves"][0]["curve"] == CURVE.to_dict()


def test_server_listens_on_loopback_only(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_page_files_are_served_to_this_origin_only(server: Server) -> None:
    page = request(server, "GET", "/")
    names = re.findall(r'(?:src|href)="([^"#]+)"', page.body.decode())
    scripts = {name for name in server.files if name.endswith(".js")}
    assert {f"/{name}" for name in names if name.endswith(".js")} <= scripts
    content_types = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "html": "text/html"}
    for path in ["/", *scripts, *(f"/{name}" for name in names)]:
        reply = request(server, "GET", path)
        assert reply.status == 200
        assert reply.headers["Content-Type"].startswith(
            content_types.get(path.rpartition(".")[2], "text/html")
        )
        policy = dict(part.split(" ", 1) for part in reply.headers["Content-Security-Policy"].split("; "))
        assert policy.pop("default-src") == "'none'"
        assert set(policy.values()) == {"'self'", "'none'"}
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert not [name for name in reply.headers if name.startswith("Access-Control")]


def test_modules_import_existing_files(server: Server) -> None:
    for path, content in server.files.items():
        if path.endswith(".js"):
            for name in re.findall(r'from "\.(/[^"]+)"', content.decode()):
                assert name in server.files


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1:{port}.evil.example",
        "",
        None,
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_hosts_are_rejected(server: Server, host: str | None, method: str) -> None:
    """DNS rebinding: a page of a host that resolves to the loopback address must not read anything."""
    header = host and host.format(port=server.port)
    for path in ("/", "/start", "/page"):
        reply = request(server, method, path, BODY if method == "POST" else None, Host=header)
        assert reply.status == 403
        assert server.address in reply.json["error"]


def test_localhost_is_accepted(server: Server) -> None:
    assert request(server, "GET", "/", Host=f"localhost:{server.port}").status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "https://127.0.0.1:{port}", "null", ""])
def test_questions_of_other_pages_are_rejected(server: Server, origin: str) -> None:
    reply = request(server, "POST", "/page", BODY, Origin=origin.format(port=server.port))
    assert reply.status == 403
    assert "own page" in reply.json["error"]


def test_questions_of_the_page_are_answered(server: Server) -> None:
    origin = server.address.rstrip("/")
    assert request(server, "POST", "/page", BODY, Origin=origin).status == 200
    assert (
        request(server, "POST", "/page?x", BODY, Content_Type="application/json; charset=utf-8").status == 200
    )


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/page", b"", "not JSON"),
        ("/page", b"{", "not JSON"),
        ("/page", b"\xff\xfe\xff", "not JSON"),
        ("/page", b"9" * 5000, "not JSON"),
        ("/page", b"[" * 200_000, "nested too deep"),
        ("/page", b"[]", "must be a JSON object"),
        ("/page", b'"a"', "must be a JSON object"),
        ("/page", b'{"curves": [], "step": 0.5}', "step = 0.5 must be an integer"),
        ("/page", b'{"curves": [], "step": -1}', "step = -1 must be at least 0"),
        ("/page", b'{"curves": 3, "step": 0}', "curves must be a list"),
        ("/page", b"{}", "curves must be a list"),
        ("/page", b'{"curves": [3]}', "curves must be a list"),
        ("/page", json.dumps({"curves": [ENTRY] * 13}).encode(), "the page holds at most 12"),
        ("/page", b'{"curves": [], "runs": 3}', "runs must be a list of strings"),
        ("/page", b'{"curves": [], "runs": [{}]}', "runs must be a list of strings"),
        ("/page", b'{"curves": [], "runs": ["3"]}', "must be a JSON object"),
        ("/page", b'{"curves": [], "runs": ["{\\"peak\\": 1}"]}', "total_steps"),
        ("/log", b'{"curve": {"total_steps": 0}}', "total_steps = 0 must lie"),
    ],
)
def test_invalid_questions_are_rejected(server: Server, path: str, body: bytes, message: str) -> None:
    reply = request(server, "POST", path, body)
    assert reply.status == 400
    assert message in reply.json["error"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_other_content_types_are_rejected(server: Server, kind: str | None) -> None:
    """Browsers send these types, which forms have, to other origins without a preflight request."""
    reply = request(server, "POST", "/page", BODY, Content_Type=kind)
    assert reply.status == 415
    assert "application/json" in reply.json["error"]


def test_logs_may_be_large(server: Server) -> None:
    text = "step,loss,lr\n" + "".join(f"{step},{2 + 1 / step},0.001{' ' * 60}\n" for step in range(1, 20_000))
    body = json.dumps({"name": "log.csv", "text": text}).encode()
    assert len(json.loads(request(server, "POST", "/log", body).json["run"])["steps"]) == 19_999


@pytest.mark.parametrize(
    "length", [None, "", "-1", "x", "²", "1" * 5000, str(MAX_BODY_BYTES + 1), str(20 * MAX_BODY_BYTES)]
)
def test_bodies_too_large_or_of_unknown_length_are_not_read(server: Server, length: str | None) -> None:
    sent = None if length is None else length.encode("utf-8").decode("latin-1")
    reply = request(server, "POST", "/page", b"", Content_Length=sent)
    assert reply.status == 413
    assert f"Content-Length must be at most {MAX_BODY_BYTES}" in reply.json["error"]


def test_truncated_bodies_are_rejected(server: Server) -> None:
    head = f"POST /page HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY[:-9])
        connection.shutdown(socket.SHUT_WR)
        assert b" 400 " in connection.makefile("rb").read()


def test_backlog_holds_many_connections() -> None:
    """This server answers none of them, so all connections stay in the backlog."""
    with Server(0) as waiting, ExitStack() as connections:
        for _ in range(100):
            connections.enter_context(socket.create_connection(("127.0.0.1", waiting.port), timeout=60))


@pytest.mark.parametrize("path", ["/nothing", "/../server.py", "/%2e%2e/server.py", "/page.htm", "/page/"])
def test_unknown_paths_are_rejected(server: Server, path: str) -> None:
    for method, body in (("GET", None), ("POST", BODY)):
        reply = request(server, method, path, body)
        assert reply.status == 404
        assert server.address in reply.json["error"]


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_rejected(server: Server, method: str) -> None:
    """No answer to OPTIONS lets a page of another origin send JSON."""
    reply = request(server, method, "/page", BODY)
    assert reply.status == 501
    assert not [name for name in reply.headers if name.startswith("Access-Control")]


def _reset_during_answer(port: int) -> None:
    """Reset a connection in the middle of an answer, like a tab that closes."""
    entry = {"curve": PlateauCurve(10**6).to_dict(), "peak": 1}
    body = json.dumps({"curves": [entry]}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /page HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert connection.recv(100)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_closing_tab_does_not_stop_the_server(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        _reset_during_answer(server.port)
        assert ask(server, "/page", QUESTION)
    assert capfd.readouterr() == ("", "")


def test_internal_error_is_answered(
    server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("plateau_jax.design.server.answer_request", fail)
        reply = request(server, "POST", "/page", BODY)
    assert (reply.status, reply.json) == (500, {"error": "this request failed; the terminal shows why"})
    assert "KeyError: 'a bug'" in capfd.readouterr().err


# A process started in the background inherits an ignored SIGINT; one started in a terminal does not.
AT_A_TERMINAL = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("plateau_jax", run_name="__main__", alter_sys=True)
"""
COMMAND = [sys.executable, "-c", AT_A_TERMINAL, "--design", "--no-browser"]


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="Windows has other signals")
def test_command_prints_its_address_and_its_end() -> None:
    with subprocess.Popen([*COMMAND, "--port", "0"], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        try:
            line = process.stdout.readline()
            match = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
            assert match, line
            for _ in range(3):
                _reset_during_answer(int(match[1]))
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (rest, errors, process.returncode) == ("", "", 0)


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="Windows has other signals")
def test_command_ends_cleanly_without_a_reader() -> None:
    """`python -m plateau_jax --design | head -1`, and Ctrl-C."""
    with subprocess.Popen([*COMMAND, "--port", "0"], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        assert process.stderr
        try:
            port = re.search(r":(\d+)/", process.stdout.readline())
            assert port
            process.stdout.close()
            _reset_during_answer(int(port[1]))  # which waits until it serves
            process.send_signal(signal.SIGINT)
            assert process.stderr.read() == ""
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("browser", [True, False])
def test_browser_is_opened_at_the_address(browser, monkeypatch, capsys):
    opened: Queue[str] = Queue()
    monkeypatch.setattr("webbrowser.open", opened.put)
    monkeypatch.setattr(Server, "serve_forever", Mock(side_effect=KeyboardInterrupt))
    serve([], 0, browser=browser)
    printed = capsys.readouterr().out
    if browser:
        assert opened.get(timeout=60) in printed
    assert opened.empty()


def test_port_in_use_is_rejected(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--design", "--no-browser", "--port", str(server.port)])
    message = capsys.readouterr().err
    assert f"--port {server.port}: " in message
    assert "Address already in use; --port 0 chooses a free one" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--design", "--port", "-1"], "--port -1: bind(): port must be 0-65535"),
        (["--design", "--port", "65536"], "--port 65536: bind(): port must be 0-65535"),
        (["--design", "--json", "10"], "argument --json: not allowed with argument --design"),
        (["--design", "--compare"], "argument --compare: not allowed with argument --design"),
        (["--design", "--peak", "-1"], "peak = -1.0 must not be negative"),
        (["--design", "--warmup-steps", "3"], "no curve: give TOTAL"),
        (["--design", "--cooldown", "3", "4"], "no curve: give TOTAL"),
        (["--design", "--from", "/no/such/file"], "No such file or directory: '/no/such/file'"),
    ],
)
def test_invalid_arguments_are_rejected(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["Cosine", "Stable + cooldown"]),
        (["1000"], ["Cosine", "Curve"]),
        (["--from", "{folder}/a.json"], ["Cosine", "a"]),
        (["1000", "--from", "{folder}/a.json"], ["Curve", "a"]),
        (["--from", "{folder}/a.json", "--from", "{folder}/b.json"], ["a", "b"]),
    ],
)
def test_page_starts_with_curves_of_command_line(tmp_path, monkeypatch, words, names):
    saved = {"a": CURVE, "b": CURVE.cooldown(500, 100)}
    for name, curve in saved.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(curve.to_dict()))
    calls: list[object] = []
    monkeypatch.setattr(
        "plateau_jax.design.server.serve", lambda *values, **options: calls.append((*values, options))
    )
    assert main(["--design", "--peak", "0.5", *(word.format(folder=tmp_path) for word in words)]) == 0
    ((entries, port, options),) = calls
    assert [entry["name"] for entry in entries] == names
    assert {entry["peak"] for entry in entries} == {0.5}
    assert (port, options) == (8700, {"browser": True})
    for entry in entries:
        if entry["name"] in saved:
            assert entry["curve"] == saved[entry["name"]].to_dict()
