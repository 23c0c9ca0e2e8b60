"""Places of blobs as URLs: one way to write each, and words for what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.adapters.blobs.s3 import S3BlobStore
from stelae.adapters.blobs.urls import blobs_url, directory_of, open_blobs, shown_place
from stelae.model.errors import InvalidArgument, PermissionDenied


@pytest.mark.parametrize(
    "place, url",
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("S3://bucket/a", "s3://bucket/a"),
        ("file:///a/b/../c/", "file:///a/c"),
        ("file://localhost/a", "file:///a"),
        ("file:/a", "file:///a"),
        ("file:///a%20b%3F", "file:///a%20b%3F"),
        ("/a b?", "file:///a%20b%3F"),
        (Path("/a"), "file:///a"),
        ("/x:y", "file:///x%3Ay"),
    ],
)
def test_each_place_has_one_url(place: object, url: str) -> None:
    assert blobs_url(place) == url == blobs_url(url)


def test_a_relative_path_is_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert directory_of(blobs_url("a:b/c#d")) == str(tmp_path / "a:b" / "c#d") == shown_place(blobs_url("a:b/c#d"))


@pytest.mark.parametrize(
    "place, words",
    [
        ("gs://bucket/a", r"nothing is served under gs: here; say file:///DIR, s3://BUCKET/PREFIX, or a plain path"),
        ("s3a://bucket/a", r"under s3a: here"),
        ("s3:bucket", r"s3:bucket is not the url of a bucket"),
        ("s3:///a", r"write s3://BUCKET or s3://BUCKET/PREFIX"),
        ("s3://bucket/a//b", r"not the url of a bucket"),
        ("s3://bucket/../b", r"not the url of a bucket"),
        ("s3://bucket/a?b=c", r"not the url of a bucket"),
        ("file://host/a", r"names no directory of this machine"),
        ("file:a", r"names no directory of this machine"),
        ("file:///a?b", r"%3F for \?"),
        ("", r"'' is no place for blobs"),
        (b"/a", r"is no place for blobs"),
        (7, r"7 is no place for blobs: say file:///DIR"),
    ],
)
def test_what_is_no_place_is_told_in_words(place: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        blobs_url(place)


def test_a_directory_whose_name_is_no_utf8(tmp_path: Path) -> None:
    place = str(tmp_path).encode() + b"/\xff"
    url = blobs_url(Path(place.decode("utf-8", "surrogateescape")))
    assert url.endswith("/%FF")
    store = open_blobs(url)
    writer = store.create("a")
    writer.write(b"bytes")
    writer.commit()
    assert isinstance(store, LocalBlobStore)
    assert store.root.encode("utf-8", "surrogateescape") == place


def test_a_bucket_by_the_environment(s3_url: str) -> None:
    writer = open_blobs(s3_url).create("a/b")
    writer.write(b"bytes")
    writer.commit()
    store = open_blobs(f"{s3_url}/a/", read_only=True)
    assert isinstance(store, S3BlobStore)
    assert bytes(store.open("b").read(0, 5)) == b"bytes"


def test_read_only_changes_nothing(s3_url: str, tmp_path: Path) -> None:
    for place in (s3_url, tmp_path / "none"):
        store = open_blobs(place, read_only=True)
        with pytest.raises(PermissionDenied, match="read-only"):
            store.create("a")
        with pytest.raises(PermissionDenied, match="read-only"):
            store.delete("a")
    assert not (tmp_path / "none").exists()
