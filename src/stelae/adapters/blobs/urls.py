"""Where blobs lie, as a URL, and the store that is there; and where a store's own directory is.

    file:///DIR, or a plain path     a directory of this machine, or one that all machines see
    s3://BUCKET/PREFIX               a part of a bucket of S3, or of a store that speaks its protocol

What S3 needs to know comes from the environment, as AWS tools have it: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL (or AWS_ENDPOINT_URL_S3), or from the machine's role.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.adapters.blobs.s3 import S3BlobStore
from stelae.model.errors import InvalidArgument
from stelae.model.values import show
from stelae.ports.blobs import BlobStore

SERVED = "file:///DIR, s3://BUCKET/PREFIX, or a plain path"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file|s3):")
_LIKE_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""Also of what went through a `Path`, which makes one of two slashes."""
_OF_SCHEME = re.compile(r"(file|s3|mem|memory):", re.IGNORECASE)
_LIKE_HOST = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\]):\d{1,5}")
_NAME_BYTES_MAX, _PATH_BYTES_MAX = 255, 4_095
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def blobs_url(place: object) -> str:
    """The one way to write where blobs lie, from a URL or a path: equal places have equal URLs. InvalidArgument if it
    is neither, or of a scheme that is not served."""
    if not isinstance(place, str | os.PathLike) or not os.fspath(place) or isinstance(os.fspath(place), bytes):
        raise InvalidArgument(f"{show(place)} is no place for blobs: say {SERVED}")
    text = os.fspath(place)
    found = _SCHEME.match(text) if isinstance(place, str) else None
    match (found[1] or found[2]).lower() if found is not None else None:
        case None:
            return Path(os.path.abspath(_with_home(text))).as_uri()
        case "file":
            return _file_url(text)
        case "s3":
            return _s3_url(text)
        case scheme:
            raise InvalidArgument(f"{text}: nothing is served under {scheme}: here; say {SERVED}")


def store_directory(place: object) -> Path:
    """The directory that a store is opened by: a path, in which ~ is the user's home, or file:///DIR. InvalidArgument
    of all else: taken for a path, it would be made as a directory of that name."""
    if not isinstance(place, str | os.PathLike) or not os.fspath(place) or isinstance(os.fspath(place), bytes):
        raise InvalidArgument(f"a store is opened by the path of its directory, not by {show(place)}")
    text = os.fspath(place)
    found = _LIKE_SCHEME.match(text.lstrip())
    if found is None:
        _check_plain(text)
        return Path(_with_home(text))
    if found[1].lower() == "file" and found.string == text:
        return Path(_path_of(urlsplit(_file_url(text)).path))
    url = f"{found[1]}://{found.string[found.end() :].lstrip('/')}"
    hint = f"; for its data proper, stelae.open(DIR, store={url!r})" if found[1].lower() == "s3" else ""
    raise InvalidArgument(f"{url}: a store is opened by a directory of this machine, not under {found[1]}:{hint}")


def _check_plain(text: str) -> None:
    """InvalidArgument of what cannot be a directory, or is meant for something else."""
    if "\0" in text:
        raise InvalidArgument(f"{show(text)} is no path: it has a zero byte in it")
    parts = os.fsencode(text).split(b"/")
    if len(os.fsencode(text)) > _PATH_BYTES_MAX or max(len(part) for part in parts) > _NAME_BYTES_MAX:
        raise InvalidArgument(
            f"{show(text)} is no path: a name in one has at most {_NAME_BYTES_MAX} bytes, all of it {_PATH_BYTES_MAX}"
        )
    found = _LIKE_HOST.fullmatch(text)
    if found is not None:
        raise InvalidArgument(
            f"{text}: a store is opened by the path of its directory; a cluster, which has a host and a port, is "
            f"connected to: stelae.connect({text!r}), or --cluster {text}. Of a directory that is called so, write "
            f"{os.path.abspath(text)}"
        )
    if _OF_SCHEME.match(text.lstrip()):
        raise InvalidArgument(
            f"{text}: a store is opened by the path of its directory, or by file:///DIR. Of a directory that is called "
            f"so, write {os.path.abspath(text)}"
        )


def _with_home(path: str) -> str:
    whole = os.path.expanduser(path)
    if whole.startswith("~"):
        raise InvalidArgument(f"{path}: there is no such user; of a directory that is called so write ./{path}")
    return whole


def _file_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path.startswith("/"):
        raise InvalidArgument(f"{text} names no directory of this machine: write file:///DIR, with %3F for ? in it")
    return Path(os.path.abspath(_path_of(parts.path))).as_uri()


def _s3_url(text: str) -> str:
    parts = urlsplit(text)
    prefix = parts.path.strip("/")
    is_path = all(part not in ("", ".", "..") for part in prefix.split("/")) if prefix else True
    if not parts.netloc or parts.query or parts.fragment or not is_path:
        raise InvalidArgument(f"{text} is not the url of a bucket: write s3://BUCKET or s3://BUCKET/PREFIX")
    return f"s3://{parts.netloc}/{prefix}".rstrip("/")


def directory_of(url: str) -> str | None:
    """The directory that a `file:` URL names; None of other URLs."""
    return _path_of(urlsplit(url).path) if url.startswith("file:") else None


def _path_of(quoted: str) -> str:
    return os.fsdecode(unquote_to_bytes(quoted))


def shown_place(url: str) -> str:
    """For people: a directory by its path, others by their URL."""
    return directory_of(url) or url


def open_blobs(place: object, *, read_only: bool = False) -> BlobStore:
    """The store of blobs at a URL or a path. Read-only, it changes nothing there, and refuses to be asked for that.

    open_blobs("s3://bucket/prefix", read_only=True).list("fragments/")
    """
    url = blobs_url(place)
    directory = directory_of(url)
    if directory is not None:
        return LocalBlobStore(directory, read_only=read_only)
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    return S3BlobStore(url, endpoint=endpoint, read_only=read_only)
