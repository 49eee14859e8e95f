"""Programs that know nothing of fired: grpcio's health and reflection clients, buf."""

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from daemon import (ROOT, WAIT_S, daemon, gaussian, header, health_pb2, refused, reinit_pb2,
                    request)
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)

assert daemon  # a fixture, found by its name

SERVICES = {"fire.v1.ReinitService", "fire.v1.AdminService", "fire.v1.MonitorService",
            "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection"}
BUF = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")


def buf(*words, **options):
    assert BUF, "buf is missing: deploy/install-deps --test installs buf-bin"
    return subprocess.run([BUF, *map(str, words)], capture_output=True, text=True, timeout=WAIT_S,
                          **options)


def test_reflection_lists_the_services(daemon):
    database = ProtoReflectionDescriptorDatabase(daemon.channel())
    assert set(database.get_services()) == SERVICES


def test_messages_can_be_built_from_reflection_alone(daemon):
    """A client without our files asks for the descriptors, and they are those of proto/."""
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(daemon.channel()))
    service = pool.FindServiceByName("fire.v1.ReinitService")
    assert [method.name for method in service.methods] == ["Reinit", "ReinitStream", "Analyze",
                                                           "AnalyzeStream"]
    got, want = descriptor_pb2.DescriptorProto(), descriptor_pb2.DescriptorProto()
    pool.FindMessageTypeByName("fire.v1.ReinitRequest").CopyToProto(got)
    reinit_pb2.ReinitRequest.DESCRIPTOR.CopyToProto(want)
    for field in got.field:
        field.ClearField("json_name")  # protoc writes it out, Python leaves it implied
    assert got == want


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_both_versions_of_reflection_answer_every_question(daemon, version):
    ask = daemon.channel().stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString)
    question = reflection_pb2.ServerReflectionRequest
    questions = [question(list_services=""), question(file_by_filename="fire/v1/tensor.proto"),
                 question(file_containing_symbol="fire.v1.SetHeader"),
                 question(file_containing_symbol="fire.v1.ReinitService.Reinit"),
                 question(file_containing_symbol="fire.v1.Nothing"),
                 question(file_by_filename="nothing.proto")]
    answers = list(ask(iter(questions), timeout=WAIT_S))
    assert [one.WhichOneof("message_response") for one in answers] == [
        "list_services_response", *["file_descriptor_response"] * 3, *["error_response"] * 2]
    assert all(one.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
               for one in answers[4:])
    assert reflection_pb2_grpc


def test_health_check_and_watch(daemon):
    serving = health_pb2.HealthCheckResponse.SERVING
    for service in ("", "fire.v1.ReinitService", "fire.v1.AdminService"):
        answer = daemon.health.Check(health_pb2.HealthCheckRequest(service=service),
                                     timeout=WAIT_S)
        assert answer.status == serving
    got = refused(daemon.health.Check, health_pb2.HealthCheckRequest(service="nobody"))
    assert got.code == grpc.StatusCode.NOT_FOUND
    watch = daemon.health.Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
    assert next(watch).status == serving
    watch.cancel()
    unknown = daemon.health.Watch(health_pb2.HealthCheckRequest(service="nobody"), timeout=WAIT_S)
    assert next(unknown).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    unknown.cancel()


def test_buf_finds_nothing_to_say_about_the_contract():
    done = buf("lint", ROOT / "proto")
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr


def curl(daemon, method, sent):
    done = buf("curl", "--protocol", "grpc", "--http2-prior-knowledge", "--unix-socket",
               daemon.socket, "--data", json.dumps(sent), f"http://localhost/{method}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "{}")


def test_buf_curl_calls_the_daemon_through_reflection(daemon):
    weight = gaussian(8, 4)
    want = daemon.reinit.Reinit(request({"w": weight}), timeout=WAIT_S)
    status = curl(daemon, "fire.v1.AdminService/Status", {})
    assert status["version"] == daemon.status().version
    about = header("w", weight)
    got = curl(daemon, "fire.v1.ReinitService/Reinit", {
        "tensors": [{"name": about.name, "shape": [8, 4], "dtype": "DATA_TYPE_F32"}],
        "data": [base64.b64encode(weight.data).decode()]})
    assert base64.b64decode(got["data"][0]) == want.data[0]
    assert got["results"][0]["result"]["action"] == "TENSOR_ACTION_PROJECTED"
