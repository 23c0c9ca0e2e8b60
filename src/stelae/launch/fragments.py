"""Where a store keeps its fragments: in its directory, or under a URL that its mark records when it is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from stelae.adapters.blobs.urls import blobs_url, directory_of, open_blobs, shown_place
from stelae.adapters.threads import LoopThread
from stelae.launch.metastores import METASTORE_FILE, InDirectory, open_metastore
from stelae.model.errors import InvalidArgument
from stelae.ports.blobs import BlobStore
from stelae.ports.metastore import Metastore
from stelae.ports.rng import Rng
from stelae.registry.store_mark import StoreMark, check_kind, mark_store, read_mark
from stelae.storage.files.claims import check_claim, claim_blobs
from stelae.storage.files.names import fragment_names

Run = Callable[[Awaitable[Any]], Any]
"""Waits for what an event loop does."""


def open_fragment_blobs(
    directory: Path,
    metastore: Metastore,
    rng: Rng,
    run: Run,
    given: str | None,
    *,
    read_only: bool,
    is_cluster: bool = False,
) -> tuple[BlobStore, str]:
    """The blobs of a store, and their URL; `given`: what the user says it is, or None. A new store is marked with it.
    InvalidArgument if the store has its fragments elsewhere, or another store has its own there."""
    mark = run(read_mark(metastore))
    if mark.token:
        check_kind(mark, is_cluster)
    elif is_cluster and given is None:
        raise InvalidArgument("say where a new cluster keeps its fragments: --store DIR or s3://BUCKET/PREFIX")
    url = _url(directory, mark, given)
    blobs = open_blobs(url, read_only=read_only)
    is_elsewhere = url != blobs_url(directory)
    if is_elsewhere or not mark.token:
        check_claim(blobs, mark.token, url)
    if is_elsewhere and not mark.token:
        _check_free(blobs, url)
    if is_elsewhere and not read_only:
        claim_blobs(blobs, run(mark_store(metastore, rng, url, is_cluster=is_cluster)).token, url)
    return blobs, url


def _url(directory: Path, mark: StoreMark, wanted: str | None) -> str:
    if not mark.token:
        return wanted or blobs_url(directory)
    known = mark.fragments or blobs_url(directory)
    if wanted is not None and wanted != known:
        where = shown_place(known) if mark.fragments else "that directory itself"
        which, how = f"store in {directory}", "open it without store="
        if mark.is_cluster:
            which, how = "cluster", "leave out --store"
        raise InvalidArgument(
            f"the {which} keeps its fragments in {where}, not in {shown_place(wanted)}: they stay where they were when "
            f"it was made; {how}"
        )
    return known


def check_new_place(directory: Path, url: str) -> None:
    """Before anything is made: a new store could have its fragments there. If there is a store, nothing is checked."""
    if not (directory / METASTORE_FILE).exists() and url != blobs_url(directory):
        blobs = open_blobs(url, read_only=True)
        check_claim(blobs, "", url)
        _check_free(blobs, url)


def _check_free(blobs: BlobStore, url: str) -> None:
    """InvalidArgument if a store without a claim is there: one that has its fragments in its own directory."""
    local = directory_of(url)
    if fragment_names(blobs) or (local is not None and (Path(local) / METASTORE_FILE).exists()):
        raise InvalidArgument(f"{shown_place(url)} holds a store already: choose another place for the fragments")


def fragments_url(path: str | Path, given: str | None = None) -> str:
    """Where the store in a directory has its fragments, whoever has it open. InvalidArgument if that is not what is
    `given`."""

    async def read() -> StoreMark:
        async with open_metastore(InDirectory(directory), read_only=True) as metastore:
            return await read_mark(metastore)

    directory = Path(path).absolute()
    with closing(LoopThread("stelae-mark")) as loop:
        return _url(directory, loop.run(read()), given)
