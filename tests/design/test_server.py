"""The design page's server: what it serves, what it rejects, and that it survives each rejection."""

import json
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from unittest.mock import ANY, Mock

import pytest
from support.commands import AT_A_TERMINAL
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


def test_page_files_are_served_to_this_origin_only(server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    types = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "/": "text/html"}
    named = re.compile(r'(?:src="|href="|from "\./)([^"#]+)"')  # by the page and its scripts
    texts = [text.decode() for text in server.files.values()]
    for path in ["/", *(f"/{name}" for text in texts for name in named.findall(text))]:
        reply = request(server, "GET", path)
        assert reply.status == 200
        assert reply.headers["Content-Type"].startswith(types[path.rpartition(".")[2]])
        policy = dict(part.split(" ", 1) for part in reply.headers["Content-Security-Policy"].split("; "))
        assert policy.pop("default-src") == "'none'"
        assert set(policy.values()) == {"'self'", "'none'"}
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert not [name for name in reply.headers if name.startswith("Access-Control")]


def test_questions_of_the_page_are_answered(server) -> None:
    assert request(server, "GET", "/", Host=f"localhost:{server.port}").status == 200
    assert request(server, "POST", "/page", BODY, Origin=server.address.rstrip("/")).status == 200
    typed = request(server, "POST", "/page?x", BODY, Content_Type="application/json; charset=utf-8")
    assert typed.status == 200


# DNS rebinding: a page of a host that resolves to the loopback address must not read anything.
HOSTS = "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:{port}.evil.example", "", None
ORIGINS = ["http://evil.example", "https://127.0.0.1:{port}", "http://127.0.0.1:{port}0", "null", ""]
ORIGINS += ["http://127.0.0.1:{port}.evil.example", "http://localhost:{port}@evil.example"]
# Browsers send these types, which forms have, to other origins without a preflight request.
FORM_TYPES = "text/plain", "application/x-www-form-urlencoded", None
LENGTHS = None, "", "-1", "x", "²".encode().decode("latin-1"), "1" * 5000, str(MAX_BODY_BYTES + 1)
BODIES: list[tuple[str, bytes, str]] = [
    *(("/page", body, "not JSON") for body in (b"", b"{", b"\xff\xfe\xff", b"9" * 5000)),
    ("/page", b"[" * 200_000, "maximum recursion depth"),
    *(("/page", body, "must be a JSON object") for body in (b"[]", b'"a"')),
]  # fmt: skip
# A method, a path, a body and headers; the status and a part of the message.
REJECTED: list[tuple[str, str, bytes | None, dict[str, str | None], int, str]] = [
    *((method, path, BODY if method == "POST" else None, {"Host": host}, 403, "open {address}")
      for method in ("GET", "POST") for path in ("/", "/start", "/page") for host in HOSTS),
    *(("POST", "/page", BODY, {"Origin": origin}, 403, "own page") for origin in ORIGINS),
    *((method, path, body, {}, 404, "there is no {path}; the page is at {address}")
      for method, body in (("GET", None), ("POST", BODY))
      for path in ("/nothing", "/../server.py", "/%2e%2e/server.py", "/page.htm", "/page/")),
    # No answer to OPTIONS lets a page of another origin send JSON.
    *((method, "/page", BODY, {}, 501, "") for method in ("HEAD", "PUT", "DELETE", "OPTIONS")),
    *(("POST", "/page", BODY, {"Content_Type": kind}, 415, "application/json") for kind in FORM_TYPES),
    *(("POST", "/page", b"", {"Content_Length": length}, 413, f"at most {MAX_BODY_BYTES}")
      for length in LENGTHS),
    *(("POST", path, body, {}, 400, message) for path, body, message in BODIES),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "message"), REJECTED)
def test_requests_are_rejected(server, method, path, body, headers, status, message) -> None:
    headers = {name: value and value.format(port=server.port) for name, value in headers.items()}
    reply = request(server, method, path, body, **headers)
    assert reply.status == status
    assert not [name for name in reply.headers if name.startswith("Access-Control")]
    if message:
        assert message.format(address=server.address, path=path) in reply.json["error"]


def test_logs_may_be_large(server) -> None:
    text = "step,loss,lr\n" + "".join(f"{step},{2 + 1 / step},0.001{' ' * 900}\n" for step in range(1, 1500))
    body = json.dumps({"name": "log.csv", "text": text}).encode()
    assert len(json.loads(request(server, "POST", "/log", body).json["run"])["steps"]) == 1499


def test_truncated_bodies_are_rejected(server) -> None:
    head = f"POST /page HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY[:-9])
        connection.shutdown(socket.SHUT_WR)
        assert b" 400 " in connection.makefile("rb").read()


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


def test_closing_tab_does_not_stop_the_server(server, capfd) -> None:
    for _ in range(5):
        _reset_during_answer(server.port)
        assert ask(server, "/page", QUESTION)
    assert capfd.readouterr() == ("", "")


def test_internal_error_is_answered(server, monkeypatch, capfd) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("plateau_jax.design.server.answer_request", Mock(side_effect=KeyError("a bug")))
        reply = request(server, "POST", "/page", BODY)
    assert (reply.status, reply.json) == (500, {"error": "this request failed; the terminal shows why"})
    assert "KeyError: 'a bug'" in capfd.readouterr().err


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="Windows has other signals")
@pytest.mark.parametrize("has_reader", [True, False])
def test_command_ends_cleanly(has_reader) -> None:
    """With Ctrl-C; also after `| head -1`, which reads the address only."""
    command = [*AT_A_TERMINAL, "--design", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        try:
            line = process.stdout.readline()
            match = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
            assert match, line
            if not has_reader:
                process.stdout.close()
            for _ in range(3):
                _reset_during_answer(int(match[1]))  # which waits until it serves
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.stderr
            rest = process.stdout.read() if has_reader else ""
            assert (rest, process.stderr.read(), process.wait(timeout=60)) == ("", "", 0)
        finally:
            process.kill()


@pytest.mark.parametrize("browser", [True, False])
def test_browser_is_opened_at_the_address(browser, monkeypatch, capsys) -> None:
    opened: Queue[str] = Queue()
    monkeypatch.setattr("webbrowser.open", opened.put)
    monkeypatch.setattr(Server, "serve_forever", Mock(side_effect=KeyboardInterrupt))
    serve([], 0, browser=browser)
    printed = capsys.readouterr().out
    if browser:
        assert opened.get(timeout=60) in printed
    assert opened.empty()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--no-browser --port {used}", "Address already in use; --port 0 chooses a free one"),
        ("--port 65536", "--port 65536: bind(): port must be 0-65535"),
        ("--json 10", "argument --json: not allowed with argument --design"),
        ("--peak -1", "peak = -1.0 must be 0, or"),
        ("--warmup-steps 3", "no curve: give TOTAL"),
        ("--cooldown 50 50", "no curve: give TOTAL"),
    ],
)
def test_invalid_arguments_are_rejected(server, words, message, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--design", *words.format(used=server.port).split()])
    assert message.format(used=server.port) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", ["Cosine", "Stable + cooldown"]),
        ("1000", ["Cosine", "Curve"]),
        ("--from a.json", ["Cosine", "a"]),
        ("1000 --from a.json", ["Curve", "a"]),
        ("--from a.json --from b.json", ["a", "b"]),
    ],
)
def test_page_starts_with_curves_of_command_line(tmp_path, monkeypatch, words, names) -> None:
    monkeypatch.chdir(tmp_path)
    saved = {"a": CURVE.to_dict(), "b": CURVE.cooldown(500, 100).to_dict()}
    for name, curve in saved.items():
        Path(f"{name}.json").write_text(json.dumps(curve))
    monkeypatch.setattr("plateau_jax.design.server.serve", mock := Mock())
    assert main(["--design", "--peak", "0.5", *words.split()]) == 0
    mock.assert_called_once_with(ANY, 8700, browser=True)
    entries = mock.call_args.args[0]
    assert [entry["name"] for entry in entries] == names
    assert {entry["peak"] for entry in entries} == {0.5}
    assert all(entry["curve"] == saved.get(entry["name"], entry["curve"]) for entry in entries)
