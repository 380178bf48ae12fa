"""The checked-in stubs are what the .proto files say, and these keep to the house style."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

PROTOS = Path(__file__).parent.parent / "protos"
PACKAGE = PROTOS / "speculation" / "v1"
FILES = sorted(path.relative_to(PROTOS) for path in PACKAGE.glob("*.proto"))


def protoc(*arguments: str) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTOS), *arguments]
    done = subprocess.run([*command, *map(str, FILES)], capture_output=True, text=True, cwd=PROTOS)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("stubs")
    protoc(f"--python_out={target}", f"--pyi_out={target}", f"--grpc_python_out={target}")
    return target / "speculation" / "v1"


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> descriptor_pb2.FileDescriptorSet:
    target = tmp_path_factory.mktemp("descriptors") / "set.pb"
    protoc(f"--descriptor_set_out={target}", "--include_source_info")
    return descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())


def test_there_are_protos() -> None:
    names = [path.name for path in FILES]
    assert names == ["proposer.proto", "types.proto", "verifier.proto"]


def test_checked_in_stubs_are_current(regenerated: Path) -> None:
    fresh = {path.name: path.read_text() for path in regenerated.iterdir() if path.is_file()}
    checked_in = {path.name: path.read_text() for path in PACKAGE.glob("*_pb2*")}
    assert sorted(fresh) == sorted(checked_in)
    stale = [name for name in fresh if fresh[name] != checked_in[name]]
    assert not stale, "run `make protos` and commit the result"


def test_generator_is_the_pinned_one() -> None:
    pin = re.search(r'"grpcio-tools==([^"]+)"', (PROTOS.parent / "pyproject.toml").read_text())
    written = {
        re.search(r"GRPC_GENERATED_VERSION = '([^']+)'", path.read_text())
        for path in PACKAGE.glob("*_pb2_grpc.py")
    }
    assert pin is not None
    assert {match[1] for match in written if match} == {pin[1]}


def test_enums_begin_with_unspecified(descriptors: descriptor_pb2.FileDescriptorSet) -> None:
    enums = [enum for file in descriptors.file for enum in file.enum_type]
    enums += [e for file in descriptors.file for m in file.message_type for e in m.enum_type]
    assert enums
    for enum in enums:
        prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", enum.name).upper()
        assert (enum.value[0].number, enum.value[0].name) == (0, f"{prefix}_UNSPECIFIED")
        assert all(value.name.startswith(f"{prefix}_") for value in enum.value), enum.name


def test_each_rpc_has_its_own_request_and_response(
    descriptors: descriptor_pb2.FileDescriptorSet,
) -> None:
    methods = [m for file in descriptors.file for s in file.service for m in s.method]
    assert methods
    for method in methods:
        assert method.input_type == f".speculation.v1.{method.name}Request"
        assert method.output_type == f".speculation.v1.{method.name}Response"
    assert len({m.name for m in methods}) == len(methods)


def test_names_keep_their_case(descriptors: descriptor_pb2.FileDescriptorSet) -> None:
    for file in descriptors.file:
        assert file.package == "speculation.v1"
        assert file.syntax == "proto3"
        for service in file.service:
            assert service.name.endswith("Service")
        for message in file.message_type:
            assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", message.name)
            for field in message.field:
                assert re.fullmatch(r"[a-z][a-z0-9_]*", field.name), f"{message.name}.{field.name}"


def test_services_and_rpcs_are_documented(
    descriptors: descriptor_pb2.FileDescriptorSet,
) -> None:
    service_field, method_field = 6, 2
    for file in descriptors.file:
        comments = {
            tuple(location.path): location.leading_comments.strip()
            for location in file.source_code_info.location
        }
        for index, service in enumerate(file.service):
            assert comments.get((service_field, index)), service.name
            for number, method in enumerate(service.method):
                assert comments.get((service_field, index, method_field, number)), method.name
