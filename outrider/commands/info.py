"""`outrider info`: what a running verifier or proposer says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from outrider.addresses import parse_address
from outrider.commands.models import print_line
from outrider.commands.security_options import TlsCa, TlsCert, TlsKey, credentials_of
from outrider.errors import OperationError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from outrider.credentials import Credentials

_TIMEOUT_S = 5.0


def info(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="HOST:PORT or unix:PATH of a gRPC service.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Ask a verifier (or a proposer) what it is and how it does."""
    answer = _ask(parse_address(address, "ADDRESS"), credentials_of(tls_cert, tls_key, tls_ca))

    from google.protobuf.json_format import MessageToDict, MessageToJson

    if as_json:
        print_line(MessageToJson(answer, preserving_proto_field_name=True))
        return
    content = MessageToDict(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    for line in _lines(content, ""):
        print_line(line)


def _ask(address: str, credentials: Credentials) -> Message:
    import grpc
    from speculation.v1 import proposer_pb2, proposer_pb2_grpc, verifier_pb2, verifier_pb2_grpc

    from outrider.credentials import open_channel

    with open_channel(address, credentials) as channel:
        verifier = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        proposer = proposer_pb2_grpc.ProposerServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            try:
                answer: Message = verifier.GetInfo(
                    verifier_pb2.GetInfoRequest(), timeout=_TIMEOUT_S
                )
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                answer = proposer.GetCapabilities(
                    proposer_pb2.GetCapabilitiesRequest(), timeout=_TIMEOUT_S
                ).capabilities
        except grpc.RpcError as error:
            raise OperationError(
                f"ADDRESS: {address} does not answer: {error.code().name.lower()}: "
                f"{error.details()}"
            ) from error
    return answer


def _lines(content: object, indent: str) -> list[str]:
    """A nested mapping as indented `key: value` lines."""
    if isinstance(content, dict):
        result = []
        for key, value in content.items():
            nested = isinstance(value, dict) or (
                isinstance(value, list) and any(isinstance(item, dict) for item in value)
            )
            if nested and value:
                result.append(f"{indent}{key}:")
                result += _lines(value, indent + "  ")
            else:
                result.append(f"{indent}{key}: {_scalar(value)}")
        return result
    if isinstance(content, list):
        return [
            line
            for item in content
            for line in _mark_first(_lines(item, indent + "  "), len(indent))
        ]
    return [f"{indent}{_scalar(content)}"]


def _mark_first(lines: list[str], column: int) -> list[str]:
    first = lines[0]
    return [f"{first[:column]}- {first[column + 2 :]}", *lines[1:]]


def _scalar(value: object) -> str:
    if isinstance(value, list):
        return " ".join(_scalar(item) for item in value) or "-"
    if isinstance(value, dict):
        return "-"
    return "-" if value == "" else str(value)
