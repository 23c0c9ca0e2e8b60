"""Objects in a bucket of S3, or of a store that speaks its protocol and knows `If-None-Match: *` on PutObject.

Put if absent is one conditional PutObject. Neither obstore nor the object_store crate under it (0.14) can make the
completion of a multipart upload conditional: their multipart always overwrites. So a writer keeps up to
`MEMORY_BYTES_MAX` in memory and more in an unnamed temporary file, which `commit` maps and sends as one request: memory
stays bounded, the file is gone with its process, and nothing half-made is left in the bucket. S3 takes 5 GiB that way.

Whose object it is: a put whose answer was lost may be repeated by obstore, and then meets its own object. Therefore
each writer puts a token of its own into the object's metadata, and when the name turns out to be taken it looks whose
token is there. Comparing contents would not do: two writers of equal bytes would both win. If nothing is there, the
store only refused because of a concurrent request (409): Unavailable. A put that failed in any other way may have
happened, or may even still happen: Unavailable as well.

`list` relies on the store listing in order of names, as S3 does, and raises InvalidArgument for one that does not (S3
directory buckets). obstore's threads do not survive a fork, and calls in the child would hang: they raise Closed.
"""

from __future__ import annotations

import importlib
import mmap
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import IO, Any
from urllib.parse import urlsplit

from typing_extensions import Buffer

from stelae.adapters.files import os_errors
from stelae.model.errors import (
    AlreadyExists,
    Closed,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StelaeError,
    Unavailable,
)
from stelae.model.words import how_to_install
from stelae.ports.blobs import BlobInfo, check_range
from stelae.ports.names import check_blob_name, starts_blob_names

MEMORY_BYTES_MAX = 8 << 20
OBJECT_BYTES_MAX = 5 << 30

_REQUEST_TIMEOUT = timedelta(seconds=30)
_UPLOAD_TIMEOUT = timedelta(minutes=15)  # the largest object at 6 MB/s
_RETRIES: dict[str, Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
_TOKEN = "stelae-writer"  # noqa: S105
_LIST_CHUNK = 1000
_NO_BUCKET = "NoSuchBucket"
"""The code by which S3 tells a missing bucket from a missing object, wherever its answer has a body."""

_obstore_process: int | None = None


class S3Blob:
    """One version of one object: each read asks for the version that was opened, and NotFound says it is gone."""

    def __init__(self, store: S3BlobStore, info: BlobInfo, etag: str | None) -> None:
        self._store = store
        self._info = info
        self._etag = etag
        self._closed = False

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def size_bytes(self) -> int:
        return self._info.size_bytes

    def read(self, offset: int, length: int) -> Buffer:
        check_range(self._info, offset, length)
        if self._closed:
            raise Closed(f"object {self.name} is closed")
        return self._store._read(self._info, self._etag, offset, length) if length else b""

    def close(self) -> None:
        self._closed = True


class S3BlobWriter:
    """One object in the making, in memory or in an unnamed file, until `commit` sends it."""

    def __init__(self, store: S3BlobStore, name: str) -> None:
        self._store = store
        self._name = name
        self._memory = bytearray()
        self._spool: IO[bytes] | None = None
        self._size_bytes = 0
        self._closed = False

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = memoryview(data).cast("B")
        try:
            self._keep(view)
        except BaseException:
            self.abort()
            raise

    def commit(self) -> None:
        self._check_open()
        try:
            if self._spool is None:
                self._store._put(self._name, self._memory, large=False)
                return
            with os_errors(self._name):
                self._spool.flush()
                mapped = mmap.mmap(self._spool.fileno(), 0, access=mmap.ACCESS_READ)
            with mapped:
                self._store._put(self._name, mapped, large=True)
        finally:
            self.abort()

    def abort(self) -> None:
        self._closed = True
        self._memory = bytearray()
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _keep(self, view: memoryview) -> None:
        self._size_bytes += len(view)
        if self._size_bytes > OBJECT_BYTES_MAX:
            raise InvalidArgument(f"{self._name}: S3 takes at most {OBJECT_BYTES_MAX} bytes in one conditional put")
        if self._spool is None and self._size_bytes <= MEMORY_BYTES_MAX:
            self._memory += view
            return
        with os_errors(self._name):
            if self._spool is None:
                self._spool = self._store._make_spool()
                self._spool.write(self._memory)
                self._memory = bytearray()
            self._spool.write(view)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the writer of {self._name} was committed or aborted")


class S3BlobStore:
    """The objects under an url `s3://bucket/prefix`. Safe for threads.

    What is not given (region, keys) comes from where AWS tools look: environment, profile, the machine's role. Large
    objects wait in `spool_directory`, the system's place for temporary files if not given, until they are sent.
    """

    def __init__(
        self,
        url: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        spool_directory: str | os.PathLike[str] | None = None,
        read_only: bool = False,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
            raise InvalidArgument(f"{url!r} is not the url of a bucket: write s3://bucket or s3://bucket/prefix")
        self._url = url
        self._bucket = parts.netloc
        self._read_only = read_only
        self._obstore = _import_obstore(url)
        self._spool_directory = spool_directory
        given = {
            "prefix": parts.path.strip("/"),
            "endpoint": endpoint,
            "region": region,
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "session_token": session_token,
        }
        config = {key: value for key, value in given.items() if value}

        def connect(timeout: timedelta) -> Any:
            client = {"timeout": timeout, "allow_http": (endpoint or "").startswith("http://")}
            with self._errors(url):
                return self._obstore.store.S3Store(parts.netloc, client_options=client, retry_config=_RETRIES, **config)

        self._requests = connect(_REQUEST_TIMEOUT)
        self._uploads = connect(_UPLOAD_TIMEOUT)

    def create(self, name: str) -> S3BlobWriter:
        check_blob_name(name)
        self._check_writable(name)
        return S3BlobWriter(self, name)

    def open(self, name: str) -> S3Blob:
        check_blob_name(name)
        with self._errors(name):
            meta = self._obstore.head(self._requests, name)
        return S3Blob(self, BlobInfo(name, meta["size"]), meta["e_tag"])

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Asks for whole directories, as obstore's prefixes are, but from the first possible name on, and stops after
        the last one."""
        if not starts_blob_names(prefix):
            return
        before = ""
        with self._errors(self._url):
            for meta in self._list_from(prefix):
                name = meta["path"]
                if name <= before:
                    raise InvalidArgument(f"{self._url} does not list in order: use a general purpose bucket")
                before = name
                if name > prefix and not name.startswith(prefix):
                    return
                if name.startswith(prefix) and _is_blob_name(name):
                    yield BlobInfo(name, meta["size"])

    def delete(self, name: str) -> None:
        check_blob_name(name)
        self._check_writable(name)
        with self._errors(name):
            try:
                self._obstore.delete(self._requests, name)
            except FileNotFoundError:
                return

    def delete_below(self, directory: str) -> None:
        check_blob_name(directory)
        for info in self.list(f"{directory}/"):
            self.delete(info.name)

    def move(self, name: str, to: str) -> None:
        """Copied by the store, then deleted."""
        check_blob_name(to)
        check_blob_name(name)
        self._check_writable(name)
        with self._errors(name):
            self._obstore.copy(self._requests, name, to)
        self.delete(name)

    def _check_writable(self, name: str) -> None:
        if self._read_only:
            raise PermissionDenied(f"{name}: the store at {self._url} was opened read-only")

    def _list_from(self, prefix: str) -> Iterator[Any]:
        directory, _, last = prefix.rpartition("/")
        offset = None
        if last:
            # '~' comes after all characters of names: at most the names of one directory lie between this and the
            # prefix. No offset has a '/' that the prefix does not have: it would not be a path of the store's.
            below = chr(ord(prefix[-1]) - 1).replace("/", ".")
            offset = f"{prefix[:-1]}{below}~"
        for chunk in self._obstore.list(self._requests, directory or None, offset=offset, chunk_size=_LIST_CHUNK):
            yield from chunk

    def _read(self, info: BlobInfo, etag: str | None, offset: int, length: int) -> Buffer:
        options = {"range": (offset, offset + length), "if_match": etag}
        with self._errors(info.name):
            try:
                data: Buffer = self._obstore.get(self._requests, info.name, options=options).bytes()
            except self._obstore.exceptions.PreconditionError:
                raise NotFound(f"object {info.name} was deleted; another one has its name now") from None
        if memoryview(data).nbytes != length:
            raise Unavailable(f"{info.name}: the store answered with {memoryview(data).nbytes} of {length} bytes")
        return data

    def _put(self, name: str, payload: Buffer, *, large: bool) -> None:
        token = secrets.token_hex(16)
        with self._errors(name):
            try:
                self._obstore.put(
                    self._uploads if large else self._requests,
                    name,
                    payload,
                    mode="create",
                    use_multipart=False,
                    attributes={_TOKEN: token},
                )
                return
            except self._obstore.exceptions.AlreadyExistsError:
                pass
        try:
            with self._errors(name):
                holder = self._obstore.get(self._requests, name, options={"head": True}).attributes.get(_TOKEN)
        except NotFound:
            raise Unavailable(f"{name}: another request for this name was under way; try again") from None
        except StelaeError as error:
            raise Unavailable(f"{name}: the name is taken, but it cannot be told by whom: {error}") from error
        if holder != token:
            raise AlreadyExists(f"object {name} exists")

    def _make_spool(self) -> IO[bytes]:
        return tempfile.TemporaryFile(dir=self._spool_directory, prefix="stelae-")

    @contextmanager
    def _errors(self, place: str) -> Iterator[None]:
        if os.getpid() != _obstore_process:
            raise Closed(f"{self._url} was opened before a fork; start processes with spawn, and open it there")
        try:
            yield
        except (self._obstore.exceptions.BaseError, OSError) as error:
            raise self._meaning(error, place) from error

    def _meaning(self, error: Exception, place: str) -> StelaeError:
        known = self._obstore.exceptions
        if _NO_BUCKET in str(error):
            return NotFound(f"{self._url}: there is no bucket {self._bucket!r}")
        if isinstance(error, FileNotFoundError):
            return NotFound(f"object {place} does not exist in {self._url}")
        if isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError | PermissionError):
            return PermissionDenied(f"{place}: {_first_line(error)}")
        if isinstance(error, known.InvalidPathError | known.UnknownConfigurationKeyError):
            return InvalidArgument(f"{place}: {_first_line(error)}")
        return Unavailable(f"{place}: {_first_line(error)}")


def _import_obstore(url: str) -> Any:
    global _obstore_process  # noqa: PLW0603
    try:
        obstore = importlib.import_module("obstore")
        importlib.import_module("obstore.store")
    except ImportError as error:
        raise InvalidArgument(f"{url} needs obstore, which is not here; {how_to_install('s3')}") from error
    if _obstore_process is None:
        _obstore_process = os.getpid()
    return obstore


def _is_blob_name(name: str) -> bool:
    try:
        return bool(check_blob_name(name))
    except InvalidArgument:
        return False


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
