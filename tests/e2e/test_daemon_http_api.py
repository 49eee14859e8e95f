"""The JSON API: what it answers, that openapi.json tells the truth about it, what it refuses."""

import http.client
import json
import socket
import urllib.parse

import jsonschema
import pytest
from build import sanitized
from daemon import ROOT, WAIT_S, admin_pb2, daemon, fired, start

from fire.v1 import monitor_pb2

assert daemon and start  # fixtures, found by their names

DESCRIPTION = json.loads((ROOT / "server" / "web" / "openapi.json").read_text())
EVIL = "<script>alert(1)</script>"
RUN = "api/run ü%2F?#"
QUOTED = urllib.parse.quote(RUN, safe="")


def ask(one, method, path, body=None, **headers):
    """(code, headers, body), without any of urllib's own ideas about addresses."""
    connection = http.client.HTTPConnection("127.0.0.1", one.http_port, timeout=WAIT_S)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True, skip_host="Host" in headers)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def get(one, path, code=200, **headers):
    """The JSON of a GET that answers `code`; a refusal is checked against its schema."""
    status, _, text = ask(one, "GET", path, **headers)
    assert status == code, f"{path}: {status} {text[:500]}"
    answer = json.loads(text)
    if code != 200:
        check(answer, "Error")
        assert answer["error"]["code"] == code
    return answer if code == 200 else answer["error"]


def report(one, body, code=200, **headers):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers.setdefault("Content_Type", "application/json")
    status, _, answer = ask(one, "POST", "/api/v1/report", text, **headers)
    assert status == code, f"{status} {answer[:500]}"
    return json.loads(answer)


def check(answer, schema):
    """The answer is what openapi.json says it is."""
    jsonschema.Draft202012Validator({
        "$ref": f"#/components/schemas/{schema}", "components": DESCRIPTION["components"],
    }).validate(answer)


def points(layer, statistic="dfi", steps=range(0, 100, 10), scale=1.0, **more):
    return {"layer": layer, "statistic": statistic, "steps": list(steps),
            "values": [scale * (1 + step / 50) for step in steps], **more}


@pytest.fixture(scope="module")
def filled(daemon):
    """A daemon with one run of three layers and a loss."""
    answer = report(daemon, {
        "run": RUN, "info": {"name": EVIL, "framework": "numpy", "labels": {"team": "a & b"}},
        "series": [points("first", shape=[8, 4]), points(EVIL), points("third", scale=3),
                   points("", "loss")]})
    assert answer["points_added"] == 40
    return daemon


# --- what it answers ------------------------------------------------------------------------------

ADDRESSES = {
    "/api/v1/runs": ["/api/v1/runs", "/api/v1/runs?filter=script&limit=5", "/api/v1/runs?digits=3"],
    "/api/v1/runs/{run}": [f"/api/v1/runs/{QUOTED}"],
    "/api/v1/runs/{run}/query": [
        f"/api/v1/runs/{QUOTED}/query",
        f"/api/v1/runs/{QUOTED}/query?layers=first&layers=third&statistics=dfi&resolution=4"
        "&aggregate=all&step_min=10&step_max=80&whole_run=true&digits=5"],
    "/api/v1/runs/{run}/advice": [f"/api/v1/runs/{QUOTED}/advice",
                                  f"/api/v1/runs/{QUOTED}/advice?layers=first"],
    "/api/v1/events": ["/api/v1/events", "/api/v1/events?kind=reinit&limit=3"],
    "/api/v1/status": ["/api/v1/status"],
    "/api/v1/session": ["/api/v1/session"],
}


@pytest.mark.parametrize("path", [path for path in DESCRIPTION["paths"]
                                  if "get" in DESCRIPTION["paths"][path]])
def test_every_described_path_answers_as_described(filled, path):
    if path == "/api/v1/watch":
        return  # its answers are streams: below
    described = DESCRIPTION["paths"][path]["get"]["responses"]["200"]["content"]
    schema = described["application/json"]["schema"]["$ref"].rpartition("/")[2]
    for address in ADDRESSES[path]:
        check(get(filled, address), schema)
        status, headers, text = ask(filled, "HEAD", address)
        assert status == 200 and text == b"" and int(headers["Content-Length"]) > 0


def test_the_description_is_served_and_has_the_contracts_fields(filled):
    assert get(filled, "/api/v1/openapi.json") == DESCRIPTION
    modules = (monitor_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR)
    for name, schema in DESCRIPTION["components"]["schemas"].items():
        for module in modules:
            message = module.message_types_by_name.get(name)
            if message:
                assert set(schema["properties"]) == {field.name for field in message.fields}, name
    for path, operations in DESCRIPTION["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                assert "$ref" in parameter or parameter["description"], (path, parameter)


def test_described_parameters_are_the_ones_that_are_taken(filled):
    """The refusal of an unknown parameter lists the known ones."""
    for path, addresses in ADDRESSES.items():
        if path == "/api/v1/session":
            continue
        error = get(filled, addresses[0].partition("?")[0] + "?unheard_of=1", code=400)
        assert error["field"] == "unheard_of" and error["reason"] == "BAD_REQUEST"
        for parameter in DESCRIPTION["paths"][path]["get"]["parameters"]:
            if "$ref" not in parameter:
                assert parameter["name"] in error["message"], (path, error)


def test_a_report_comes_back_as_it_was_sent(filled):
    run = get(filled, f"/api/v1/runs/{QUOTED}")
    assert run["run"] == RUN and run["info"]["name"] == EVIL
    assert run["info"]["labels"] == {"team": "a & b"}
    assert [layer["name"] for layer in run["layer_list"]] == ["first", EVIL, "third"]
    assert run["layer_list"][0]["shape"] == [8, 4]
    assert set(run["statistics"]) == {"dfi", "loss"}
    answer = get(filled, f"/api/v1/runs/{QUOTED}/query?statistics=dfi")
    assert [one["layer"] for one in answer["series"]] == ["first", EVIL, "third"]
    sent = points("third", scale=3)
    assert answer["series"][2]["steps"] == sent["steps"]
    assert answer["series"][2]["mean"] == sent["values"]
    whole = get(filled, f"/api/v1/runs/{QUOTED}/query?layers=first&whole_run=true")
    assert {(one["layer"], one["statistic"]) for one in whole["series"]} == {
        ("first", "dfi"), ("", "loss")}


def test_digits_shorten_numbers(filled):
    text = ask(filled, "GET", f"/api/v1/runs/{QUOTED}/query?layers=third&digits=2")[2].decode()
    assert json.loads(text)["series"][0]["mean"][1] == pytest.approx(3.6, rel=0.02)
    assert get(filled, "/api/v1/runs?digits=18", code=400)["field"] == "digits"
    assert get(filled, "/api/v1/runs?digits=0", code=400)["field"] == "digits"


def test_a_tenant_sees_its_own_runs_only(filled):
    report(filled, {"run": "of-alice", "series": [points("a")]}, x_fired_tenant="alice")
    names = [run["run"] for run in get(filled, "/api/v1/runs?tenant=alice")["runs"]]
    assert names == ["of-alice"]
    assert "of-alice" not in [run["run"] for run in get(filled, "/api/v1/runs")["runs"]]
    get(filled, "/api/v1/runs/of-alice", code=404)
    assert get(filled, "/api/v1/runs?tenant=no/tenant", code=400)["field"] == "x-fired-tenant"


# --- what it refuses ------------------------------------------------------------------------------

REFUSED = {
    f"/api/v1/runs/{QUOTED}/query?resolution=abc": (400, "resolution"),
    f"/api/v1/runs/{QUOTED}/query?resolution=5000": (400, "resolution"),
    f"/api/v1/runs/{QUOTED}/query?step_min=9223372036854775808": (400, "step_min"),
    f"/api/v1/runs/{QUOTED}/query?aggregate=median": (400, "aggregate"),
    f"/api/v1/runs/{QUOTED}/query?run=other": (400, "run"),
    f"/api/v1/runs/{QUOTED}/query?layers=%ff": (400, "layers"),
    f"/api/v1/runs/{QUOTED}/query?layers=a%00b": (400, "query"),
    "/api/v1/events?kind=nothing": (400, "kind"),
    "/api/v1/runs?limit=-1": (400, "limit"),
    "/api/v1/runs/nobody": (404, "run"),
    "/api/v1/runs/nobody/query": (404, "run"),
    "/api/v1/nothing": (404, "path"),
    "/api/v1/runs/": (404, "path"),
    "/api/v1/runs//query": (404, "path"),
    "/api/v1/runs/%zz": (404, "path"),
    "/api/v1/runs/%00": (404, "path"),
    "/api/v1/runs/%ff": (404, "path"),
    "/api/v1/runs/%2": (404, "path"),
    "/api/v1/runs/a/b/c/d/e": (404, "path"),
    "/api/v1/../../../etc/passwd": (404, "path"),
    "/api/v1/%2e%2e/%2e%2e/etc/passwd": (404, "path"),
    "/../../../../etc/passwd": (404, "path"),
    "/..%2f..%2fetc%2fpasswd": (404, "path"),
    "//etc/passwd": (404, "path"),
    "/style.css/../app.js": (404, "path"),
}


@pytest.mark.parametrize("address", REFUSED)
def test_bad_addresses_are_refused_by_name(filled, address):
    code, field = REFUSED[address]
    error = get(filled, address, code=code)
    assert error["field"] == field, error
    assert "/" not in error["field"] and "root:" not in error["message"]


def test_an_oversized_address_is_refused(filled):
    """The first line has a limit; past it the connection ends without reaching a handler."""
    status = ask(filled, "GET", "/api/v1/runs?filter=" + "x" * 300_000)[0]
    assert status in (413, 414, 431)
    assert get(filled, "/api/v1/runs?filter=" + "x" * 2000, code=400)["field"] == "query"
    many = "&".join(f"layers=l{i}" for i in range(1100))
    assert get(filled, f"/api/v1/runs/{QUOTED}/query?{many}", code=400)["field"] == "layers"


@pytest.mark.skipif(sanitized(), reason="660,000 points are slow under a sanitizer")
def test_a_query_that_is_too_large_names_the_resolution_that_fits(start):
    one = start()
    steps = list(range(0, 1000))
    for first in range(0, 660, 60):
        report(one, {"run": "wide", "series": [
            {"layer": f"layer{i}", "statistic": "dfi", "steps": steps, "values": steps}
            for i in range(first, first + 60)]})
    error = get(one, "/api/v1/runs/wide/query?resolution=4096", code=400)
    assert error["field"] == "resolution" and "600000" in error["message"]
    assert any(word.strip(".,;:").isdigit() and int(word.strip(".,;:")) <= 1500
               for word in error["message"].split() if word.strip(".,;:") != "600000"), error
    check(get(one, "/api/v1/runs/wide/query?resolution=100"), "QueryResponse")


BODIES = {
    "no JSON": (b"{", "application/json", 400, "body"),
    "another type": (b"{}", "text/plain", 415, "content-type"),
    "an unknown field": (b'{"run":"r","what":1}', "application/json", 400, "what"),
    "no run": (b'{"series":[]}', "application/json", 400, "run"),
    "NaN": (b'{"run":"r","series":[{"statistic":"dfi","steps":[1],"values":[NaN]}]}',
            "application/json", 400, "body"),
    "a bad statistic": (b'{"run":"r","series":[{"statistic":"D F I","steps":[1],"values":[1]}]}',
                        "application/json", 400, "series[0]"),
    "lengths": (b'{"run":"r","series":[{"statistic":"dfi","steps":[1,2],"values":[1]}]}',
                "application/json", 400, "series[0]"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_report_is_refused_and_changes_nothing(filled, name):
    body, kind, code, field = BODIES[name]
    error = report(filled, body, code=code, Content_Type=kind)["error"]
    assert error["field"].startswith(field), error
    get(filled, "/api/v1/runs/r", code=404)


def test_a_body_has_a_limit_and_a_length(filled):
    status, _, text = ask(filled, "POST", "/api/v1/report", None, Content_Type="application/json",
                          Content_Length=str(5 << 20))
    assert status == 413 and b"4 MiB" in text
    status, _, _ = ask(filled, "POST", "/api/v1/report", None, Content_Type="application/json",
                       Transfer_Encoding="chunked")
    assert status == 411


def test_methods_that_a_path_does_not_take(filled):
    for method, path, allowed in (("POST", "/api/v1/runs", "GET, HEAD"),
                                  ("GET", "/api/v1/report", "POST"),
                                  ("PUT", "/api/v1/session", "GET, HEAD, POST, DELETE"),
                                  ("POST", "/", "GET, HEAD")):
        status, headers, _ = ask(filled, method, path, b"" if method != "GET" else None)
        assert status == 405 and headers["Allow"] == allowed, (method, path, status)


def test_other_sites_are_refused(filled):
    body = json.dumps({"run": "csrf", "series": [points("a")]}).encode()
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"},
                    {"Origin": "null"}):
        assert ask(filled, "GET", "/api/v1/runs", **headers)[0] == 403
        if "Origin" in headers:
            report(filled, body, code=403, **headers)
    get(filled, "/api/v1/runs/csrf", code=404)


def test_pages_are_locked_down(filled):
    for path in ("/", "/app.js", "/style.css", "/api/v1/runs", "/api/v1/runs/nobody"):
        _, headers, _ = ask(filled, "GET", path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy, path
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in headers


def test_files_are_kept_by_their_tag(filled):
    status, headers, text = ask(filled, "GET", "/app.js")
    assert status == 200 and headers["Content-Type"].startswith("text/javascript")
    assert text == (ROOT / "server" / "web" / "app.js").read_bytes()
    status, _, text = ask(filled, "GET", "/app.js", If_None_Match=headers["ETag"])
    assert status == 304 and text == b""


# --- live -----------------------------------------------------------------------------------------


class Stream:
    """A reader of server-sent events that hides nothing."""

    def __init__(self, one, path, **headers):
        self.socket = socket.create_connection(("127.0.0.1", one.http_port), WAIT_S)
        lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{one.http_port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join(lines + ["", ""]).encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = {}
        while (line := self.file.readline().strip()):
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()
        self.text = b""

    def chunk(self):
        size = int(self.file.readline(), 16)
        data = self.file.read(size)
        self.file.readline()
        return data

    def next(self):
        """The next message."""
        while True:
            while b"\n\n" not in self.text:
                data = self.chunk()
                assert data, "the stream ended"
                self.text += data
            event, _, self.text = self.text.partition(b"\n\n")
            if event.startswith(b"data: "):
                return json.loads(event[6:])

    def close(self):
        self.file.close()
        self.socket.close()


def test_watch_sends_what_is_stored(filled):
    stream = Stream(filled, "/api/v1/watch?run=live")
    try:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.chunk().startswith(b"retry:")
        report(filled, {"run": "other", "series": [points("a")]})
        report(filled, {"run": "live", "series": [points("a", steps=[1, 2])]})
        message = stream.next()
        check(message, "WatchResponse")
        assert message["run"] == "live"
        assert message["series"][0]["steps"] == [1, 2]
    finally:
        stream.close()


def test_watchers_that_leave_are_forgotten_and_the_daemon_ends_with_open_ones(start):
    one = start()
    for _ in range(20):
        Stream(one, "/api/v1/watch").close()
    streams = [Stream(one, "/api/v1/watch") for _ in range(3)]
    report(one, {"run": "r", "series": [points("a")]})
    for stream in streams:
        while stream.next()["run"] != "r":  # the device's event may come first
            pass
    assert one.stop() == 0, one.text()[-4000:]
    for stream in streams:
        stream.close()


def test_watch_refuses_what_it_does_not_know(filled):
    assert get(filled, "/api/v1/watch?events_only=maybe", code=400)["field"] == "events_only"


# --- who may --------------------------------------------------------------------------------------

TOKENS = {"reader": "a-token-for-the-reader-000001", "writer": "a-token-for-the-writer-000002"}
RULES = {"reader": '["fire.v1.MonitorService/ListRuns", "fire.v1.MonitorService/Query"]',
         "writer": '["fire.v1.MonitorService/*"]'}


@pytest.fixture
def guarded(start, tmp_path):
    lines = ["tokens:"]
    for name, token in TOKENS.items():
        made = fired("--hash-token", input=token).stdout.strip()
        lines.append(f'  - {{ name: {name}, tenant: team, hash: "{made}", allow: {RULES[name]} }}')
    path = tmp_path / "credentials.yaml"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return start("--credentials", path)


def test_without_a_token_only_the_page_itself_is_there(guarded):
    assert ask(guarded, "GET", "/")[0] == 200 and ask(guarded, "GET", "/app.js")[0] == 200
    for path in ("runs", "runs/x", "runs/x/query", "runs/x/advice", "events", "watch", "status"):
        status, headers, text = ask(guarded, "GET", f"/api/v1/{path}")
        assert status == 401 and headers["WWW-Authenticate"] == "Bearer", path
        check(json.loads(text), "Error")
    report(guarded, {"run": "r"}, code=401)
    assert get(guarded, "/api/v1/session") == {"needed": True, "signed_in": False, "tenant": ""}
    assert ask(guarded, "POST", "/api/v1/session", b"")[0] == 401
    assert ask(guarded, "POST", "/api/v1/session", b"",
               Authorization="Bearer of-nobody-at-all-00")[0] == 401


def test_a_token_has_the_rights_of_its_rules(guarded):
    reader = {"Authorization": f"Bearer {TOKENS['reader']}"}
    writer = {"Authorization": f"Bearer {TOKENS['writer']}"}
    report(guarded, {"run": "r", "series": [points("a")]}, code=403, **reader)
    report(guarded, {"run": "r", "series": [points("a")]}, **writer)
    assert get(guarded, "/api/v1/runs", **reader)["runs"][0]["run"] == "r"
    get(guarded, "/api/v1/events", code=403, **reader)
    get(guarded, "/api/v1/status", code=403, **writer)
    get(guarded, "/api/v1/runs?tenant=other", **reader)  # the credential names the tenant


def test_a_session_is_a_cookie_that_scripts_cannot_read(guarded):
    status, headers, text = ask(guarded, "POST", "/api/v1/session", b"",
                                Authorization=f"Bearer {TOKENS['writer']}")
    assert status == 200
    assert json.loads(text) == {"needed": True, "signed_in": True, "tenant": "team"}
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie
    assert TOKENS["writer"] not in cookie
    value = cookie.partition(";")[0]
    assert get(guarded, "/api/v1/session", Cookie=value)["signed_in"] is True
    get(guarded, "/api/v1/runs", Cookie=value)
    # The page is for looking: a cookie changes nothing, whatever its token may do.
    report(guarded, {"run": "r", "series": [points("a")]}, code=401, Cookie=value)
    assert ask(guarded, "DELETE", "/api/v1/session", None, Cookie=value)[0] == 200
    get(guarded, "/api/v1/runs", code=401, Cookie=value)
    get(guarded, "/api/v1/runs", code=401, Cookie="fired_session=" + "0" * 64)


def test_a_token_that_is_taken_away_ends_its_sessions(guarded, tmp_path):
    value = ask(guarded, "POST", "/api/v1/session", b"",
                Authorization=f"Bearer {TOKENS['reader']}")[1]["Set-Cookie"].partition(";")[0]
    get(guarded, "/api/v1/runs", Cookie=value)
    path = tmp_path / "credentials.yaml"
    path.write_text("\n".join(line for line in path.read_text().splitlines()
                              if "reader" not in line) + "\n")
    since = len(guarded.lines)
    guarded.signal(1)
    guarded.wait_event("reloaded", since)
    get(guarded, "/api/v1/runs", code=401, Cookie=value)
