"""A server that speaks S3, for the whole test run, and places in its bucket that no other test has."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from threading import Lock
from typing import Any

import pytest

BUCKET = "bucket"
KEYS = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
_numbers = count()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A server with the bucket 'bucket'. Its conditional put looks and then writes, which S3 does in one step: so puts
    go one at a time."""
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    lock = Lock()
    put_object = S3Response.put_object

    def put_alone(response: Any) -> Any:
        with lock:
            return put_object(response)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Response, "put_object", put_alone)
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = bucket_client(endpoint)
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield endpoint
        server.stop()


@pytest.fixture
def s3_settings(s3_endpoint: str) -> dict[str, str]:
    """What a process has in its environment to find the server."""
    return KEYS | {"AWS_ENDPOINT_URL": s3_endpoint}


@pytest.fixture
def s3_url(s3_settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of the test's own, which this process and those it starts find by their environment."""
    for name, value in s3_settings.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/place-{next(_numbers)}"


def bucket_client(endpoint: str) -> Any:
    import boto3

    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)


def names_in(endpoint: str, url: str) -> list[str]:
    """Of all objects under a URL, without it."""
    prefix = url.removeprefix(f"s3://{BUCKET}/") + "/"
    client = bucket_client(endpoint)
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [each["Key"].removeprefix(prefix) for page in pages for each in page.get("Contents", ())]
    finally:
        client.close()
