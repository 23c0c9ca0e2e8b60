"""Which names files and objects may have: the same on every store, so that no adapter invents its own rule."""

from __future__ import annotations

import re

from stelae.model.errors import InvalidArgument

_LOG = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._=-]*")

LOG_NAME_MAX = 200
BLOB_NAME_MAX = 900
BLOB_PART_MAX = 200


def check_log_name(name: str) -> str:
    if len(name) > LOG_NAME_MAX or not _LOG.fullmatch(name):
        raise InvalidArgument(f"{name!r} is not a log file name: use letters, digits, '.', '_', '-', no leading dot")
    return name


def _is_part(part: str) -> bool:
    return len(part) <= BLOB_PART_MAX and _PART.fullmatch(part) is not None


def starts_blob_names(prefix: str) -> bool:
    """Whether some object name could start with the prefix: '' and 'a/' can, '../' and 'a//' cannot."""
    *whole, last = prefix.split("/")
    return all(_is_part(part) for part in whole) and (not last or _is_part(last))


def check_blob_name(name: str) -> str:
    if len(name) > BLOB_NAME_MAX or not all(_is_part(part) for part in name.split("/")):
        raise InvalidArgument(
            f"{name!r} is not an object name: use parts of letters, digits, '.', '_', '=', '-' joined by '/', "
            "no leading dot"
        )
    return name
