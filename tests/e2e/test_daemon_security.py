"""Who may do what: tokens, certificates, rules, and one check for every entrance."""

import socket
import subprocess

import grpc
import pytest
from daemon import (ROOT, WAIT_S, admin_pb2, fired, firectl, gaussian, header, health_pb2,
                    health_pb2_grpc, refused, reinit_pb2_grpc, request, signal, start,
                    stream_messages)

assert start  # a fixture, found by its name

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED
TOKENS = {"trainer": "a-token-for-the-trainer-0001", "operator": "a-token-for-the-operator-02",
          "nothing": "a-token-without-any-rule-003"}
RULES = {"trainer": '["fire.v1.ReinitService/Reinit", "fire.v1.ReinitService/Analyze"]',
         "operator": '["fire.v1.AdminService/*", "http/metrics", "grpc.health.v1.Health/*"]',
         "nothing": '["http/readyz"]'}


def bearer(token):
    return [("authorization", f"Bearer {token}")]


def hashed(token):
    return fired("--hash-token", input=token).stdout.strip()


@pytest.fixture(scope="module")
def hashes():
    return {name: hashed(token) for name, token in TOKENS.items()}


def credentials(folder, hashes, names=("trainer", "operator", "nothing"), certificates=""):
    """A credentials file; tenants are called <name>-tenant."""
    lines = ["tokens:"] if names else []
    for name in names:
        lines.append(f"  - {{ name: {name}, tenant: {name}-tenant, hash: \"{hashes[name]}\", "
                     f"allow: {RULES[name]} }}")
    path = folder / "credentials.yaml"
    path.write_text("\n".join(lines) + "\n" + certificates)
    path.chmod(0o600)
    return path


def work(one, **options):
    return one.reinit.Reinit(request({"w": gaussian(16, 8)}), timeout=WAIT_S, **options)


# --- without credentials --------------------------------------------------------------------------


def test_without_credentials_a_local_caller_names_its_tenant(start):
    one = start()
    work(one)
    work(one, metadata=[("x-fired-tenant", "alice")])
    assert {"local", "alice"} <= {tenant.name for tenant in one.status().tenants}


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_listening_beyond_loopback_needs_tls_or_words(start, tmp_path, address):
    done = fired("--listen", address, "--http", "off", "--state-dir", tmp_path / "s",
                 "--runtime-dir", tmp_path / "r", code=2)
    assert "TLS" in done.stderr and "insecure_anywhere" in done.stderr
    done = fired("--listen", address, "--insecure-anywhere", "yes", "--http", "off", code=2)
    assert "I know that weights travel unprotected" in done.stderr
    done = fired("--listen", f"unix:{tmp_path}/x", "--http", address, "--state-dir",
                 tmp_path / "s", "--runtime-dir", tmp_path / "r", code=2)
    assert "http" in done.stderr


def test_said_in_words_it_listens_but_strangers_have_no_rights(start):
    """A caller from another address than loopback is refused where there are no credentials."""
    one = start("--insecure-anywhere", "I know that weights travel unprotected",
                listen="0.0.0.0:0", ready=False)
    line = one.wait_event("listening")
    port = int(line["address"].rpartition(":")[2])
    with one.new_channel(f"127.0.0.1:{port}") as channel:
        stub = reinit_pb2_grpc.ReinitServiceStub(channel)
        stub.Reinit(request({"w": gaussian(16, 8)}), timeout=WAIT_S, wait_for_ready=True)
    other = own_address()
    if other is None:
        pytest.skip("this machine has no address but loopback")
    with one.new_channel(f"{other}:{port}") as channel:
        stub = reinit_pb2_grpc.ReinitServiceStub(channel)
        got = refused(stub.Reinit, request({"w": gaussian(16, 8)}))
        assert got.code in (UNAUTHENTICATED, DENIED), got


def own_address():
    """An address of this machine that is not loopback, or None. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = one.getsockname()[0]
        return None if address.startswith("127.") else address


def test_the_socket_is_for_its_owner_alone(start):
    one = start()
    assert one.socket.stat().st_mode & 0o007 == 0
    assert (one.folder / "run").stat().st_mode & 0o077 == 0


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_has_the_rights_of_its_rules_and_no_others(start, hashes, tmp_path):
    one = start("--credentials", credentials(tmp_path, hashes))
    trainer, operator = bearer(TOKENS["trainer"]), bearer(TOKENS["operator"])
    work(one, metadata=trainer)
    weight = gaussian(16, 8)
    stream = stream_messages([(header("w", weight), weight)])
    for call, sent, who, code in (
            (one.reinit.Reinit, request({"w": weight}), None, UNAUTHENTICATED),
            (one.reinit.Reinit, request({"w": weight}), bearer("wrong-" + TOKENS["trainer"]),
             UNAUTHENTICATED),
            (one.reinit.Reinit, request({"w": weight}), bearer(TOKENS["trainer"][:-1]),
             UNAUTHENTICATED),
            (one.reinit.Reinit, request({"w": weight}), [("authorization", TOKENS["trainer"])],
             UNAUTHENTICATED),
            (one.reinit.Reinit, request({"w": weight}), bearer(TOKENS["nothing"]), DENIED),
            (one.reinit.Reinit, request({"w": weight}), operator, DENIED),
            (one.reinit.ReinitStream, stream, trainer, DENIED),
            (one.admin.Status, admin_pb2.StatusRequest(), trainer, DENIED),
            (one.admin.Drain, admin_pb2.DrainRequest(), trainer, DENIED),
            (one.admin.Status, admin_pb2.StatusRequest(), None, UNAUTHENTICATED)):
        got = refused(call, sent, metadata=who)
        assert got.code == code and got.reason, (got, who)
        assert "-tenant" not in got.message and "token-" not in got.message, got
    assert one.admin.Status(admin_pb2.StatusRequest(), metadata=operator,
                            timeout=WAIT_S).version
    one.health.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)  # open to all


def test_the_tenant_comes_from_the_credential_alone(start, hashes, tmp_path):
    one = start("--credentials", credentials(tmp_path, hashes))
    work(one, metadata=[*bearer(TOKENS["trainer"]), ("x-fired-tenant", "somebody-else")])
    status = one.admin.Status(admin_pb2.StatusRequest(), timeout=WAIT_S,
                              metadata=bearer(TOKENS["operator"]))
    names = {tenant.name for tenant in status.tenants}
    assert "trainer-tenant" in names and "somebody-else" not in names and "local" not in names


def test_unknown_methods_tell_a_stranger_nothing(start, hashes, tmp_path):
    one = start("--credentials", credentials(tmp_path, hashes))
    call = one.channel().unary_unary("/fire.v1.ReinitService/Nothing", request_serializer=bytes,
                                     response_deserializer=bytes)
    got = refused(call, b"")
    assert got.code in (UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED), got


def test_http_asks_for_the_same_credentials(start, hashes, tmp_path):
    one = start("--credentials", credentials(tmp_path, hashes))
    assert one.http("/metrics")[0] == 401
    assert one.http("/metrics", Authorization="Bearer wrong")[0] == 401
    assert one.http("/metrics", Authorization=f"Bearer {TOKENS['trainer']}")[0] == 403
    code, text = one.http("/metrics", Authorization=f"Bearer {TOKENS['operator']}")
    assert code == 200 and "fired_calls_total" in text or "fired_build_info" in text
    assert one.http("/healthz")[0] == 200 and one.http("/readyz")[0] == 200


def test_http_refuses_other_hosts_and_origins(start):
    """A page that makes a browser resolve its own name to this machine gets nothing."""
    one = start()
    port = one.http_port
    assert one.http("/metrics", Host="evil.example")[0] == 403
    assert one.http("/metrics", Host=f"evil.example:{port}")[0] == 403
    assert one.http("/metrics", Origin="http://evil.example")[0] == 403
    assert one.http("/metrics", Host=f"localhost:{port}")[0] == 200
    assert one.http("/metrics", Origin=f"http://127.0.0.1:{port}")[0] == 200


def test_reload_takes_new_tokens_and_forgets_old_ones(start, hashes, tmp_path):
    path = credentials(tmp_path, hashes, ("trainer",))
    one = start("--credentials", path)
    work(one, metadata=bearer(TOKENS["trainer"]))
    got = refused(one.admin.Status, admin_pb2.StatusRequest(),
                  metadata=bearer(TOKENS["operator"]))
    assert got.code == UNAUTHENTICATED
    credentials(tmp_path, hashes, ("operator",))
    one.signal(signal.SIGHUP)
    one.wait_event("reloaded")
    one.admin.Status(admin_pb2.StatusRequest(), timeout=WAIT_S,
                     metadata=bearer(TOKENS["operator"]))
    got = refused(one.reinit.Reinit, request({"w": gaussian(8, 8)}),
                  metadata=bearer(TOKENS["trainer"]))
    assert got.code == UNAUTHENTICATED


def test_a_bad_credentials_file_is_never_taken(start, hashes, tmp_path):
    """Not at the start, and not at a reload: then the old one stays."""
    path = credentials(tmp_path, hashes, ("trainer",))
    good = path.read_text()
    for text, words in ((good.replace("sha256", "md5"), "hash"),
                        (good.replace("Reinit\"", "Reinitt\""), "Reinit"),
                        (good + "tokns: []\n", "tok"), ("tokens: [", "credentials")):
        path.write_text(text)
        done = fired("--check-config", "--credentials", path, "--listen", f"unix:{tmp_path}/x",
                     "--http", "off", code=2)
        assert words in done.stderr, done.stderr
        assert hashes["trainer"][-20:] not in done.stderr
    path.write_text(good)
    path.chmod(0o644)
    done = fired("--check-config", "--credentials", path, "--listen", f"unix:{tmp_path}/x",
                 "--http", "off", code=1)
    assert "chmod 600" in done.stderr
    path.chmod(0o600)
    one = start("--credentials", path)
    path.write_text("tokens: [")
    one.signal(signal.SIGHUP)
    one.wait_event("reload_failed")
    work(one, metadata=bearer(TOKENS["trainer"]))


def test_hashes_are_salted_and_short_tokens_refused():
    token = TOKENS["trainer"]
    assert hashed(token) != hashed(token) and token not in hashed(token)
    done = fired("--hash-token", input="short", code=2)
    assert "16" in done.stderr


def test_firectl_with_a_token(start, hashes, tmp_path):
    one = start("--credentials", credentials(tmp_path, hashes))
    done = firectl("status", "--addr", one.address, code=64 + UNAUTHENTICATED.value[0])
    assert "token" in done.stderr
    done = firectl("status", "--addr", one.address, "--token", TOKENS["trainer"],
                   code=64 + DENIED.value[0])
    assert TOKENS["trainer"] not in done.stderr
    firectl("status", "--addr", one.address, environment={"FIRED_TOKEN": TOKENS["operator"]})
    assert TOKENS["operator"] not in one.text() and TOKENS["trainer"] not in one.text()


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs") / "made"
    subprocess.run([str(ROOT / "deploy" / "make-certs"), str(folder)], check=True,
                   capture_output=True, timeout=WAIT_S)
    return folder


def secure(one, port, certificates, ca="ca.pem", client=False):
    parts = [(certificates / ca).read_bytes(), None, None]
    if client:
        parts[1:] = [(certificates / name).read_bytes() for name in ("client.key", "client.pem")]
    return one.new_channel(f"localhost:{port}", grpc.ssl_channel_credentials(*parts))


def tls_port(one):
    line = one.wait_event("listening")
    one.wait_event("ready")
    return int(line["address"].rpartition(":")[2])


def test_tls_for_a_tcp_port(start, hashes, certificates, tmp_path):
    """With TLS it may listen anywhere; tokens still decide; plain connections get nothing."""
    one = start("--tls-certificate", certificates / "server.pem", "--tls-key",
                certificates / "server.key", "--credentials", credentials(tmp_path, hashes),
                listen="0.0.0.0:0", ready=False)
    port = tls_port(one)
    with secure(one, port, certificates) as channel:
        stub = reinit_pb2_grpc.ReinitServiceStub(channel)
        assert stub.Reinit(request({"w": gaussian(16, 8)}), timeout=WAIT_S,
                           metadata=bearer(TOKENS["trainer"])).data
        assert refused(stub.Reinit, request({"w": gaussian(16, 8)})).code == UNAUTHENTICATED
    with one.new_channel(f"localhost:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        got = refused(stub.Check, health_pb2.HealthCheckRequest())
        assert got.code == grpc.StatusCode.UNAVAILABLE
    firectl("health", "--addr", f"127.0.0.1:{port}", "--ca", certificates / "ca.pem")
    done = firectl("health", "--addr", f"127.0.0.1:{port}", "--deadline", "5", code=78)
    assert str(port) in done.stderr
    firectl("status", "--addr", f"127.0.0.1:{port}", "--ca", certificates / "ca.pem",
            "--server-name", "localhost", environment={"FIRED_TOKEN": TOKENS["operator"]})
    firectl("health", "--addr", f"127.0.0.1:{port}", "--ca", certificates / "ca.pem",
            "--server-name", "elsewhere", "--deadline", "5", code=78)


def test_mutual_tls_maps_a_certificate_to_its_tenant(start, certificates, tmp_path):
    rules = ('certificates:\n  - { subject: trainer, tenant: tls-tenant, allow: '
             '["fire.v1.ReinitService/*", "fire.v1.AdminService/Status"] }\n')
    one = start("--tls-certificate", certificates / "server.pem", "--tls-key",
                certificates / "server.key", "--tls-client-ca", certificates / "ca.pem",
                "--credentials", credentials(tmp_path, {}, (), rules), listen="127.0.0.1:0",
                ready=False)
    port = tls_port(one)
    with secure(one, port, certificates, client=True) as channel:
        stub = reinit_pb2_grpc.ReinitServiceStub(channel)
        assert stub.Reinit(request({"w": gaussian(16, 8)}), timeout=WAIT_S,
                           metadata=[("x-fired-tenant", "other")]).data
        drain = channel.unary_unary("/fire.v1.AdminService/Drain", request_serializer=bytes,
                                    response_deserializer=bytes)
        assert refused(drain, b"").code == DENIED
    with secure(one, port, certificates) as channel:  # no certificate: no connection
        got = refused(reinit_pb2_grpc.ReinitServiceStub(channel).Reinit,
                      request({"w": gaussian(16, 8)}))
        assert got.code == grpc.StatusCode.UNAVAILABLE, got
    flags = ["--addr", f"127.0.0.1:{port}", "--ca", certificates / "ca.pem"]
    text = firectl("status", *flags, "--cert", certificates / "client.pem", "--key",
                   certificates / "client.key").stdout
    assert "tls-tenant" in text and "other" not in text
    firectl("health", *flags, "--deadline", "5", code=78)


def test_a_certificate_of_another_ca_is_refused(start, certificates, tmp_path):
    stranger = tmp_path / "stranger"
    subprocess.run([str(ROOT / "deploy" / "make-certs"), str(stranger)], check=True,
                   capture_output=True, timeout=WAIT_S)
    one = start("--tls-certificate", certificates / "server.pem", "--tls-key",
                certificates / "server.key", "--tls-client-ca", certificates / "ca.pem",
                listen="127.0.0.1:0", ready=False)
    port = tls_port(one)
    parts = [(certificates / "ca.pem").read_bytes(),
             *((stranger / name).read_bytes() for name in ("client.key", "client.pem"))]
    with one.new_channel(f"localhost:{port}", grpc.ssl_channel_credentials(*parts)) as channel:
        got = refused(reinit_pb2_grpc.ReinitServiceStub(channel).Reinit,
                      request({"w": gaussian(16, 8)}))
        assert got.code == grpc.StatusCode.UNAVAILABLE, got
    with secure(one, port, stranger, client=True) as channel:  # the client checks the daemon too
        got = refused(reinit_pb2_grpc.ReinitServiceStub(channel).Reinit,
                      request({"w": gaussian(16, 8)}))
        assert got.code == grpc.StatusCode.UNAVAILABLE, got
