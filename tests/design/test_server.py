"""The design page's server: what it serves and rejects, and that it survives each rejection."""

import json
import re
import signal
import socket
import struct
import subprocess
from pathlib import Path
from queue import Queue
from unittest.mock import ANY, Mock

import pytest
from design.design import ask, request, served
from support.commands import AT_A_TERMINAL

from plateau_jax import PlateauCurve
from plateau_jax.tools.command_line.main import main
from plateau_jax.tools.design.answers import ANSWERS
from plateau_jax.tools.design.server import MAX_BODY_BYTES, Server, serve

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)])
QUESTION = {"curves": [{"curve": CURVE.to_dict(), "peak": 3e-4}]}
BODY = json.dumps(QUESTION).encode()


@pytest.fixture(scope="module")
def server():
    with served() as server:
        yield server


@pytest.fixture(autouse=True)
def check_server_still_answers(server):
    yield
    assert ask(server, "/describe", QUESTION)["curves"][0]["curve"] == CURVE.to_dict()


# Requests that are answered.


def check_for_this_origin_only(reply):
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert not [name for name in reply.headers if name.startswith("Access-Control")]
    policies = {}
    for policy in reply.headers["Content-Security-Policy"].split("; "):
        kind, sources = policy.split(" ", 1)
        policies[kind] = sources
    assert policies.pop("default-src") == "'self'"
    assert set(policies.values()) == {"'none'"}


TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", "": "text/html"}


def test_page_files_are_served_to_this_origin_only(server):
    assert server.server_address[0] == "127.0.0.1"
    paths = ["/"]
    for content in server.files.values():  # the page and its scripts name the others
        names = re.findall(r'(?:src="|href="|from "\./)([^"#]+)"', content.decode())
        paths += [f"/{name}" for name in names]
    for path in paths:
        reply = request(server, "GET", path)
        assert reply.status == 200
        assert reply.headers["Content-Type"].startswith(TYPES[Path(path).suffix])
        check_for_this_origin_only(reply)


def test_page_is_served_under_the_name_of_the_host(server):
    for host in (f"localhost:{server.port}", "localhost", "127.0.0.1:9000"):  # as in a tunnel
        assert request(server, "GET", "/", Host=host).status == 200


def test_question_of_the_page_itself_is_answered(server):
    origin = server.address.rstrip("/")
    assert request(server, "POST", "/describe", BODY, Origin=origin).status == 200


# Requests that are rejected.


def check_rejected(reply, status, message):
    assert reply.status == status
    assert not [name for name in reply.headers if name.startswith("Access-Control")]
    assert message in reply.json["error"]


@pytest.mark.parametrize("path", ["/", "/describe"])
@pytest.mark.parametrize("host", ["evil.example:{port}", "127.0.0.1:{port}.evil.example", None])
def test_other_hosts_are_rejected(server, path, host):
    """DNS rebinding: a page of a host that resolves to the loopback address reads nothing."""
    if host is not None:
        host = host.format(port=server.port)
    message = f"open {server.address}"
    check_rejected(request(server, "GET", path, Host=host), 403, message)
    check_rejected(request(server, "POST", path, BODY, Host=host), 403, message)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "https://127.0.0.1:{port}", "http://127.0.0.1:{port}0", "null"],
)
def test_questions_of_other_origins_are_rejected(server, origin):
    origin = origin.format(port=server.port)
    check_rejected(request(server, "POST", "/describe", BODY, Origin=origin), 403, "own page")


@pytest.mark.parametrize("path", ["/nothing", "/../server.py", "/page/"])
def test_other_paths_are_rejected(server, path):
    message = f"there is no {path}; the page is at {server.address}"
    check_rejected(request(server, "GET", path), 404, message)
    check_rejected(request(server, "POST", path, BODY), 404, message)


def test_preflight_requests_are_rejected(server):
    """No answer to OPTIONS lets a page of another origin send JSON."""
    reply = request(server, "OPTIONS", "/describe", BODY)
    assert reply.status == 501
    assert not [name for name in reply.headers if name.startswith("Access-Control")]


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE"])
def test_other_methods_are_rejected(server, method):
    for host in (f"127.0.0.1:{server.port}", "evil.example"):
        assert request(server, method, "/index.html", Host=host).status == 501


@pytest.mark.parametrize("length", [None, "-1", str(MAX_BODY_BYTES + 1)])
def test_wrong_lengths_are_rejected(server, length):
    reply = request(server, "POST", "/describe", b"", Content_Length=length)
    check_rejected(reply, 413, f"at most {MAX_BODY_BYTES}")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "Expecting property name"),
        (b"\xff\xfe\xff", "can't decode"),
        (b'{"curves": [5]}', "curves must be a list of objects"),
        (b'{"curves": {"kind": "plateau"}}', "curves must be a list of objects"),
    ],
)
def test_wrong_bodies_are_rejected(server, body, message, capfd):
    check_rejected(request(server, "POST", "/describe", body), 400, message)
    assert not capfd.readouterr().err


# Connections that break, and errors.


def post(connection, port, body, length):
    """Send a question whose head promises this length."""
    head = (
        f"POST /describe HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)


def test_truncated_bodies_are_rejected(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        post(connection, server.port, BODY[:-9], len(BODY))
        connection.shutdown(socket.SHUT_WR)
        assert b" 400 " in connection.makefile("rb").read()


def reset_during_answer(port):
    """Reset a connection in the middle of an answer, like a tab that closes."""
    entry = {"curve": PlateauCurve(10**6).to_dict(), "peak": 1}
    body = json.dumps({"curves": [entry]}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        post(connection, port, body, len(body))
        assert connection.recv(100)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_internal_error_is_answered(server, monkeypatch, capfd):
    failing = Mock(side_effect=KeyError("a bug"))
    with monkeypatch.context() as patch:
        patch.setitem(ANSWERS, "/describe", failing)
        reply = request(server, "POST", "/describe", BODY)
    assert reply.status == 500
    assert reply.json == {"error": "this request failed; the terminal shows why"}
    assert "KeyError: 'a bug'" in capfd.readouterr().err


# The command.


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="Windows has other signals")
@pytest.mark.parametrize("has_reader", [True, False])
def test_command_ends_cleanly(has_reader):
    """With Ctrl-C; also after `| head -1`, which reads the address only, and after closed tabs."""
    command = [*AT_A_TERMINAL, "--design", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        assert process.stderr
        try:
            line = process.stdout.readline()
            match = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
            assert match, line
            if not has_reader:
                process.stdout.close()
            for _ in range(3):
                reset_during_answer(int(match[1]))  # which waits until it serves
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            if has_reader:
                assert process.stdout.read() == ""
            assert process.stderr.read() == ""
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("browser", [True, False])
def test_browser_is_opened_at_the_address(browser, monkeypatch, capsys):
    opened = Queue()
    monkeypatch.setattr("webbrowser.open", opened.put)
    monkeypatch.setattr(Server, "serve_forever", Mock(side_effect=KeyboardInterrupt))
    serve([], 0, browser=browser)
    printed = capsys.readouterr().out
    if browser:
        assert opened.get(timeout=60) in printed
    assert opened.empty()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--no-browser --port {used}", "Address already in use; --port 0 chooses a free one"),
        ("--cooldown 50 50", "no curve: give TOTAL"),
    ],
)
def test_invalid_arguments_are_rejected(server, arguments, message, capsys):
    written = arguments.format(used=server.port)
    with pytest.raises(SystemExit, match="2"):
        main(["--design", *written.split()])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("", ["Cosine", "Stable + cooldown"]),
        ("--from a.json", ["Cosine", "a"]),
        ("1000 --from a.json", ["Curve", "a"]),
        ("--from a.json --from b.json", ["a", "b"]),
    ],
)
def test_page_starts_with_curves_of_command_line(tmp_path, monkeypatch, arguments, names):
    cooled = CURVE.cooldown(500, 100)
    saved = {"a": CURVE.to_dict(), "b": cooled.to_dict()}
    monkeypatch.chdir(tmp_path)
    for name, curve in saved.items():
        text = json.dumps(curve)
        Path(f"{name}.json").write_text(text)
    started = Mock()
    monkeypatch.setattr("plateau_jax.tools.design.server.serve", started)
    assert main(["--design", "--peak", "0.5", *arguments.split()]) == 0
    started.assert_called_once_with(ANY, 8700, browser=True)
    (entries, _) = started.call_args.args
    assert [entry["name"] for entry in entries] == names
    for entry in entries:
        assert entry["peak"] == 0.5
        if entry["name"] in saved:
            assert entry["curve"] == saved[entry["name"]]
