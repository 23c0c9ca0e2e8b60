"""Every error a caller can meet, in two families that never mix.

- *Nothing happened*: every error but `UnknownOutcome`. Of these, `Retryable` ones mean that the same call may succeed
  later with nothing changed: the client repeats it until its deadline. The others need the caller to change something.
- *The outcome is unknown*: `UnknownOutcome`. The call was sent, and its answer was lost, or was that the other side
  failed on a mistake of its own: it may have happened. Nobody repeats it by itself, unless the operation is safe to
  repeat (`service.operations` says which are), or is a write of rows, which has a number (`once`), and whose answer was
  lost.

Two of the first family say more. `PartialWrite` is of many rows, each of which is a write of its own: so many are
durable, and nothing happened of the others. `InternalFault` is of what is safe to repeat: the caller need not look
after anything. Of any other operation the same mistake is told as `UnknownOutcome`.

Messages name the table, column, key or file, and the rule that was broken. What users can meet is exported by `stelae`;
those that are not say who meets them instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from stelae.model.public import public


@public("StelaeError")
class StelaeError(Exception):
    """The root: whatever Stelae raises on purpose derives from this. Errors cross process borders (pickle) whole."""

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (type(self), self.args, self.__dict__)


def _revive(kind: type[StelaeError], args: tuple[object, ...], state: dict[str, object]) -> StelaeError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


@public("Retryable")
class Retryable(StelaeError):
    """Nothing happened, and the same call may succeed later: clients repeat it within their deadline."""


@public("UnknownOutcome")
class UnknownOutcome(StelaeError):
    """It was asked for, and no answer came, or that the other side failed on a mistake of its own (`is_fault`): it may
    or may not have happened. Look before acting."""

    is_fault = False

    def __init__(self, message: str, *, is_fault: bool = False) -> None:
        super().__init__(message)
        if is_fault:  # not said otherwise: whoever reads an error from a connection makes it without this
            self.is_fault = True


@public("NotFound")
class NotFound(StelaeError):
    """What was named does not exist."""


@public("AlreadyExists")
class AlreadyExists(StelaeError):
    """What should be made is there already."""


@public("InvalidSchema")
class InvalidSchema(StelaeError):
    """A table definition, or a change to one, breaks a rule. Nothing of it was applied."""


@public("InvalidArgument")
class InvalidArgument(StelaeError):
    """A value, key, name or option cannot be what it is. Nothing was written."""


@public("InvalidPredicate")
class InvalidPredicate(InvalidArgument):
    """A scan text that does not parse: says where, with the line and a caret under the place.

    Of a long line a window around the place is shown; `text` is the whole text, `position` counts from its start.
    """

    def __init__(self, message: str, text: str, position: int) -> None:
        lines_before = text.count("\n", 0, position)
        place = f"line {lines_before + 1}, position {position}" if "\n" in text.rstrip() else f"position {position}"
        shown, caret = _line_around(text, position)
        super().__init__(f"{message}, at {place}\n  {shown}\n  {' ' * caret}^")
        self.text = text
        self.position = position


_SHOWN_BEFORE_MAX, _SHOWN_AFTER_MAX = 60, 40


def _line_around(text: str, position: int) -> tuple[str, int]:
    """What can be printed of the line around a position, and how far into it the position lies."""
    start = max(text.rfind("\n", 0, position) + 1, position - _SHOWN_BEFORE_MAX)
    newline = text.find("\n", position)
    stop = min(len(text) if newline < 0 else newline, position + _SHOWN_AFTER_MAX)
    before = "..." if start and text[start - 1] != "\n" else ""
    after = "..." if stop < len(text) and text[stop] != "\n" else ""
    line = "".join([c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text[start:stop]])
    return before + line + after, len(before) + position - start


@public("Conflict")
class Conflict(StelaeError):
    """A row changed after the txn the write was conditioned on. Read again, then decide."""


@public("PartialWrite")
class PartialWrite(StelaeError):
    """Some rows of a large write are durable and some are not; `durable` counts the rows that are. `why`: what stood
    against the others, without that count; None: only the message says it."""

    def __init__(self, message: str, durable: int, why: str | None = None) -> None:
        super().__init__(message)
        self.durable = durable
        self.why = why


def why_no_more(error: StelaeError) -> str:
    """What kept a write, or the rest of it, from being durable. Whoever adds up what several errors say has a count of
    his own, and tells no other beside it."""
    return error.why if isinstance(error, PartialWrite) and error.why is not None else str(error)


@public("Overloaded")
class Overloaded(Retryable):
    """A bounded queue or memory limit is full. Wait, then try again."""


@public("Unavailable")
class Unavailable(Retryable):
    """What would serve the request is not there right now."""


@public("DeadlineExceeded")
class DeadlineExceeded(Unavailable):
    """The caller's time was up before it could be done, and nothing happened."""


@public("ConnectionLost")
class ConnectionLost(Unavailable):
    """The process that has the store cannot be reached, or is closing it. Nothing happened; find out who has it now."""


class TabletAway(Unavailable):
    """The tablet, or the part of it that holds these rows, is not here (any more). Find out where it is now. For
    clients, which try again; users are told Unavailable at their deadline."""


class Deposed(Unavailable):
    """Another master leads by now, or may: what this one asks, or is asked, is not done. For the processes of a
    cluster; users are told Unavailable."""


class StaleSchema(Unavailable):
    """A block is written, or a scan bound, for another schema version than the tablet is at now: make it anew. For
    clients, which do; users are told Unavailable at their deadline."""


class WouldBeHidden(StelaeError):
    """Versions with times in the future may hide what would be written. Write it with a later time. Never reaches
    users."""


@public("SchemaChanged")
class SchemaChanged(Retryable):
    """A column that a running scan reads is not what it was when the scan began. Scan again."""


@public("DiskFull")
class DiskFull(Unavailable):
    """There is no room to write. Reads go on; writes go on once there is room."""


@public("DiskFailed")
class DiskFailed(Unavailable):
    """The device refused a read or a write, which did not happen."""


@public("ClockTooFarAhead")
class ClockTooFarAhead(Unavailable):
    """A remote time is further ahead of the local clock than the allowed skew."""


@public("JobFailed")
class JobFailed(StelaeError):
    """A job on Spark failed, and would fail again: what its message names has to change. Nothing was loaded."""


@public("SnapshotTooOld")
class SnapshotTooOld(StelaeError):
    """The history needed for this read may have been dropped. Read at a newer time."""


@public("Corruption")
class Corruption(StelaeError):
    """Bytes at rest are not what was written. Says which file and where; nothing is changed or deleted."""

    def __init__(self, message: str, file: str, offset: int | None = None) -> None:
        place = file if offset is None else f"{file} at byte {offset}"
        super().__init__(f"{place}: {message}")
        self.file = file
        self.offset = offset


@public("UnsupportedFormat")
class UnsupportedFormat(StelaeError):
    """The bytes are whole, but of a format version this release cannot read. A newer release can."""


@public("PermissionDenied")
class PermissionDenied(StelaeError):
    """The operating system, the store or a server of a cluster refuses access."""


@public("TokenMissing")
class TokenMissing(PermissionDenied):
    """A cluster's token has to be proved, and none was given."""


@public("WrongToken")
class WrongToken(PermissionDenied):
    """The two sides of a connection do not know the same token."""


@public("OtherStore")
class OtherStore(PermissionDenied):
    """Another store, or another cluster, is served there."""


@public("Closed")
class Closed(StelaeError):
    """The object was closed; open it again."""


@public("ProtocolError")
class ProtocolError(StelaeError):
    """The other side of a connection sent what the protocol does not allow. The connection cannot go on."""


@public("InternalFault")
class InternalFault(StelaeError):
    """The process that has the store failed on a mistake of its own, with what is safe to repeat. Its log says more."""


@public("TooMuchAtOnce")
class TooMuchAtOnce(StelaeError):
    """One row has more bytes of history than can be merged. Point reads of it still work."""


class NotCached(StelaeError):
    """What was asked for is not in memory, and the caller would not wait for a file. Never reaches users."""


_CANDIDATES_MAX = 1_000


def nearest(name: str, candidates: Iterable[str]) -> str:
    """A hint to append to a NotFound message, empty if nothing is near among the first thousand."""
    from difflib import get_close_matches  # by those that misspell

    matches = get_close_matches(name, list(islice(candidates, _CANDIDATES_MAX)), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
