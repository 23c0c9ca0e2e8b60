"""The part of etcd's public gRPC interface (version 3) that a metastore needs, as protobuf messages made at run time.

Names and numbers of fields are etcd's; enumerations are plain numbers, which are the same bytes. The messages live in
a pool of their own, so that another etcd client in this process is not disturbed.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import msgspec

from stelae.model.errors import InvalidArgument
from stelae.model.words import how_to_install

EQUAL = 0
TARGET_CREATE, TARGET_MOD, TARGET_VALUE = 1, 2, 3
EVENT_DELETE = 1

_PACKAGE = "etcdserverpb"

# name:type=number, the type with * if repeated, the number with ? if the field is one of several alternatives.
_MESSAGES = """
ResponseHeader revision:int64=3
KeyValue key:bytes=1 create_revision:int64=2 mod_revision:int64=3 version:int64=4 value:bytes=5 lease:int64=6
RangeRequest key:bytes=1 range_end:bytes=2 limit:int64=3 revision:int64=4 keys_only:bool=8
RangeResponse header:ResponseHeader=1 kvs:KeyValue*=2 more:bool=3
PutRequest key:bytes=1 value:bytes=2 lease:int64=3
PutResponse header:ResponseHeader=1
DeleteRangeRequest key:bytes=1 range_end:bytes=2
DeleteRangeResponse header:ResponseHeader=1
RequestOp request_put:PutRequest=2? request_delete_range:DeleteRangeRequest=3?
Compare result:int32=1 target:int32=2 key:bytes=3 create_revision:int64=5? mod_revision:int64=6? value:bytes=7?
TxnRequest compare:Compare*=1 success:RequestOp*=2
TxnResponse header:ResponseHeader=1 succeeded:bool=2
CompactionRequest revision:int64=1
CompactionResponse header:ResponseHeader=1
Event type:int32=1 kv:KeyValue=2
WatchRequest create_request:WatchCreateRequest=1?
WatchCreateRequest key:bytes=1 range_end:bytes=2 start_revision:int64=3 progress_notify:bool=4 fragment:bool=8
WatchResponse header:ResponseHeader=1 created:bool=3 canceled:bool=4 compact_revision:int64=5 cancel_reason:string=6 \
fragment:bool=7 events:Event*=11
LeaseGrantRequest TTL:int64=1 ID:int64=2
LeaseGrantResponse ID:int64=2 TTL:int64=3
LeaseRevokeRequest ID:int64=1
LeaseRevokeResponse header:ResponseHeader=1
LeaseKeepAliveRequest ID:int64=1
LeaseKeepAliveResponse ID:int64=2 TTL:int64=3
AuthenticateRequest name:string=1 password:string=2
AuthenticateResponse token:string=2
"""


class Method(msgspec.Struct, frozen=True):
    """A call of etcd's: its path, and the messages by name."""

    path: str
    request: str
    response: str


RANGE = Method("/etcdserverpb.KV/Range", "RangeRequest", "RangeResponse")
TXN = Method("/etcdserverpb.KV/Txn", "TxnRequest", "TxnResponse")
COMPACT = Method("/etcdserverpb.KV/Compact", "CompactionRequest", "CompactionResponse")
WATCH = Method("/etcdserverpb.Watch/Watch", "WatchRequest", "WatchResponse")
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", "LeaseGrantRequest", "LeaseGrantResponse")
LEASE_REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", "LeaseRevokeRequest", "LeaseRevokeResponse")
LEASE_KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", "LeaseKeepAliveRequest", "LeaseKeepAliveResponse")
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", "AuthenticateRequest", "AuthenticateResponse")


@cache
def grpc_module() -> Any:
    """grpc with grpc.aio, imported when first needed: it takes a while, and is not always there."""
    try:
        grpc = importlib.import_module("grpc")
        importlib.import_module("grpc.aio")
        importlib.import_module("google.protobuf")
    except ImportError as error:
        raise InvalidArgument(
            f"an etcd metastore needs grpcio and protobuf ({error}); {how_to_install('etcd')}"
        ) from error
    return grpc


@cache
def message(name: str) -> Any:
    """The class of a message."""
    grpc_module()
    factory = importlib.import_module("google.protobuf.message_factory")
    return factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
    file = descriptors.FileDescriptorProto(name="stelae/etcd.proto", package=_PACKAGE, syntax="proto3")
    for line in _MESSAGES.strip().splitlines():
        name, *fields = line.split()
        made = file.message_type.add(name=name)
        for field in fields:
            _add_field(descriptors.FieldDescriptorProto, made, field)
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _add_field(kind: Any, made: Any, text: str) -> None:
    name, _, rest = text.partition(":")
    type_name, _, number = rest.partition("=")
    field = made.field.add(name=name, number=int(number.rstrip("?")))
    field.label = kind.LABEL_REPEATED if type_name.endswith("*") else kind.LABEL_OPTIONAL
    type_name = type_name.rstrip("*")
    if type_name[0].isupper():
        field.type = kind.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_name}"
    else:
        field.type = getattr(kind, f"TYPE_{type_name.upper()}")
    if number.endswith("?"):
        if not made.oneof_decl:
            made.oneof_decl.add(name="alternatives")
        field.oneof_index = 0
