"""What a master does all the time, and meets what waiting does not mend: that is told, and tried again."""

from __future__ import annotations

from stelae.model.events import LeadingFailed, Listener


def words_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class Failures:
    """Each part of the work is told about once, until it goes well or fails in another way."""

    def __init__(self, tell: Listener) -> None:
        self._tell = tell
        self._failing: dict[str, type[Exception]] = {}

    def note(self, part: str, error: Exception) -> None:
        if self._failing.get(part) is not type(error):
            self._failing[part] = type(error)
            self._tell(LeadingFailed(part, words_of(error)))

    def note_well(self, part: str) -> None:
        self._failing.pop(part, None)
