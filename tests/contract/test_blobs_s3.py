"""What the answers of S3 mean: the cases in which a server, not a test of behaviour, decides what a client is told."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import boto3
import obstore
import pytest
from moto.s3.responses import S3Response

from stelae.adapters.blobs import s3 as blobs_s3
from stelae.adapters.blobs.s3 import MEMORY_BYTES_MAX, S3BlobStore
from stelae.model.errors import AlreadyExists, Closed, InvalidArgument, NotFound, PermissionDenied, Unavailable
from stelae.ports.blobs import BlobInfo

Answer = tuple[int, dict[str, str], str]
Put = Callable[[Any], Any]


def connect(url: str, endpoint: str) -> S3BlobStore:
    return S3BlobStore(
        url, endpoint=endpoint, region="us-east-1", access_key_id="test", secret_access_key="test", session_token="test"
    )


@pytest.fixture
def store(s3_endpoint: str, request: pytest.FixtureRequest) -> S3BlobStore:
    return connect(f"s3://bucket/{request.node.name}", s3_endpoint)


@pytest.fixture
def answer_puts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Put, Any], Any]], None]:
    """Let the server answer a put as the test says, given the real way to do it."""

    def patch(answer: Callable[[Put, Any], Any]) -> None:
        real: Put = S3Response.put_object
        monkeypatch.setattr(S3Response, "put_object", lambda response: answer(real, response))

    return patch


def put(store: S3BlobStore, name: str, data: bytes) -> None:
    writer = store.create(name)
    writer.write(data)
    writer.commit()


@pytest.mark.parametrize("size_bytes", [10, MEMORY_BYTES_MAX + 1])
def test_repeated_put_that_meets_its_own_object_has_won(
    store: S3BlobStore, answer_puts: Callable[..., None], size_bytes: int
) -> None:
    attempts = []

    def lose_the_first_answer(real: Put, response: Any) -> Any:
        attempts.append(1)
        done = real(response)
        return done if len(attempts) > 1 else (503, {}, "")

    answer_puts(lose_the_first_answer)
    put(store, "a", b"x" * size_bytes)
    assert len(attempts) == 2
    assert list(store.list()) == [BlobInfo("a", size_bytes)]


def test_repeated_put_that_meets_anothers_equal_object_has_lost(
    store: S3BlobStore, answer_puts: Callable[..., None], s3_endpoint: str, request: pytest.FixtureRequest
) -> None:
    attempts = []

    def lose_the_race_between_attempts(real: Put, response: Any) -> Any:
        attempts.append(1)
        if len(attempts) == 1:
            put(connect(f"s3://bucket/{request.node.name}", s3_endpoint), "a", b"same")
            return 503, {}, ""
        return real(response)

    answer_puts(lose_the_race_between_attempts)
    writer = store.create("a")
    writer.write(b"same")
    with pytest.raises(AlreadyExists):
        writer.commit()
    assert len(attempts) == 3


def test_conflict_with_nothing_there_is_unavailable(store: S3BlobStore, answer_puts: Callable[..., None]) -> None:
    answer_puts(lambda real, response: (409, {}, "<Error><Code>ConditionalRequestConflict</Code></Error>"))
    with pytest.raises(Unavailable):
        put(store, "a", b"bytes")
    assert list(store.list()) == []


def test_answers_that_stay_lost_are_unavailable(store: S3BlobStore, answer_puts: Callable[..., None]) -> None:
    answer_puts(lambda real, response: (503, {}, ""))
    writer = store.create("a")
    writer.write(b"bytes")
    with pytest.raises(Unavailable):
        writer.commit()
    with pytest.raises(Closed):
        writer.commit()


def test_refused_access_is_permission_denied(store: S3BlobStore, answer_puts: Callable[..., None]) -> None:
    answer_puts(lambda real, response: (403, {}, "<Error><Code>AccessDenied</Code></Error>"))
    with pytest.raises(PermissionDenied, match="a"):
        put(store, "a", b"bytes")


def test_missing_bucket_is_not_found(s3_endpoint: str) -> None:
    with pytest.raises(NotFound, match="s3://no-bucket"):
        put(connect("s3://no-bucket/prefix", s3_endpoint), "a", b"bytes")


def test_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_s3, "_RETRIES", {"max_retries": 0})
    nowhere = connect("s3://bucket", "http://127.0.0.1:1")
    with pytest.raises(Unavailable):
        put(nowhere, "a", b"bytes")
    with pytest.raises(Unavailable):
        nowhere.open("a")
    with pytest.raises(Unavailable):
        list(nowhere.list())
    with pytest.raises(Unavailable):
        nowhere.delete("a")


def test_replaced_object_is_not_found_by_who_opened_the_old_one(store: S3BlobStore) -> None:
    put(store, "a", b"old")
    blob = store.open("a")
    store.delete("a")
    put(store, "a", b"new")
    with pytest.raises(NotFound):
        blob.read(0, 3)


def test_store_sees_only_its_prefix_and_names(
    store: S3BlobStore, s3_endpoint: str, request: pytest.FixtureRequest
) -> None:
    client = boto3.client(
        "s3", endpoint_url=s3_endpoint, region_name="us-east-1", aws_access_key_id="t", aws_secret_access_key="t"
    )
    for key in (f"{request.node.name}-beside/a", "a", f"{request.node.name}/not ours", f"{request.node.name}/ours"):
        client.put_object(Bucket="bucket", Key=key, Body=b"")
    client.close()
    assert [info.name for info in store.list()] == ["ours"]


def test_list_out_of_order_is_refused(store: S3BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [[{"path": "b", "size": 1}, {"path": "a", "size": 1}]]
    monkeypatch.setattr(obstore, "list", lambda *args, **kwargs: iter(listed))
    with pytest.raises(InvalidArgument, match="order"):
        list(store.list())


def test_large_object_waits_outside_of_memory(store: S3BlobStore) -> None:
    chunk = bytes(1 << 20)
    writer = store.create("a")
    tracemalloc.start()
    try:
        for _ in range(64):
            writer.write(chunk)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        writer.abort()
    assert peak_bytes < 3 * MEMORY_BYTES_MAX


def test_object_larger_than_one_put_is_refused(store: S3BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_s3, "OBJECT_BYTES_MAX", 10)
    writer = store.create("a")
    writer.write(b"x" * 10)
    with pytest.raises(InvalidArgument, match="10 bytes"):
        writer.write(b"x")
    with pytest.raises(Closed):
        writer.commit()


@pytest.mark.parametrize("url", ["", "bucket", "s3:bucket", "s3://", "gs://bucket", "/dir", "s3://bucket?x=1"])
def test_url_that_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="s3://bucket"):
        S3BlobStore(url)


def test_missing_obstore_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InvalidArgument, match=r"pip install '.\[s3\]'"):
        S3BlobStore("s3://bucket")


def test_forked_child_is_told_instead_of_hanging(store: S3BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_s3, "_obstore_process", -1)
    with pytest.raises(Closed, match="fork"):
        store.open("a")
    with pytest.raises(Closed, match="fork"):
        put(store, "a", b"bytes")
