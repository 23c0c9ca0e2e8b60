"""Purge policies: when a version of a cell is to be deleted.

Text: `max-history=3`, `max-age=7d`, joined by `and` (deletes only where both say so) and `or` (where either does);
`and` binds tighter, parentheses group. Ages take a unit (us, ms, s, m, h, d, w); a bare number is microseconds.
A policy parses from its text and prints back to one canonical text.

A group's policy can be altered. What the old one had purged by then is gone for good, and reads of snapshots before
then still go by it, so a group keeps its past policies, each with the last txn that it judged (`Reigns`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from stelae.model.errors import InvalidSchema
from stelae.model.hybrid import micros_of
from stelae.model.ids import Micros, Txn
from stelae.model.public import public
from stelae.model.values import show

_UNITS = {"w": 604_800_000_000, "d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000}
_TOKEN = re.compile(
    r"\s*(?:(max-history|max-age)\s*=\s*(\d+)\s*(us|ms|s|m|h|d|w)?(?![\w.])|(and|or)\b|([()]))", re.IGNORECASE
)
_DURATION = re.compile(r"\s*(\d{1,18})\s*(us|ms|s|m|h|d|w)?\s*", re.IGNORECASE)
AGE_US_MAX = 200 * 365 * _UNITS["d"]
HISTORY_MAX = 1_000_000_000
NESTING_MAX = 32
POLICY_LENGTH_MAX = 4096


class MaxHistory(msgspec.Struct, frozen=True):
    """Delete a version once this many newer ones exist."""

    versions: int

    def __str__(self) -> str:
        return f"max-history={self.versions}"


class MaxAge(msgspec.Struct, frozen=True):
    """Delete a version once it is older than this."""

    age_us: int

    def __str__(self) -> str:
        return f"max-age={print_duration(self.age_us)}"


class AllOf(msgspec.Struct, frozen=True):
    parts: tuple[PurgePolicy, ...]

    def __str__(self) -> str:
        return " and ".join(f"({part})" if isinstance(part, AnyOf) else str(part) for part in self.parts)


class AnyOf(msgspec.Struct, frozen=True):
    parts: tuple[PurgePolicy, ...]

    def __str__(self) -> str:
        return " or ".join(str(part) for part in self.parts)


PurgePolicy: TypeAlias = MaxHistory | MaxAge | AllOf | AnyOf


class PastPolicy(msgspec.Struct, frozen=True):
    """What commits and reads were judged by up to a txn. None: nothing was purged."""

    policy: PurgePolicy | None
    until: Txn


class Reigns(msgspec.Struct, frozen=True):
    """A policy and those before it, oldest first, at least one. Each takes the versions over that the one before has
    left, at the time of the other's last txn."""

    past: tuple[PastPolicy, ...]
    now: PurgePolicy | None

    def at(self, at: Txn) -> Purging:
        """As it was at a snapshot: what came later does not count."""
        if self.past[-1].until < at:
            return self
        over = tuple(each for each in self.past if each.until < at)
        now = self.past[len(over)].policy if len(over) < len(self.past) else self.now
        return Reigns(over, now) if over else now


# Here, as some are made of others: the types of their fields are known by now.
for _kind in (MaxHistory, MaxAge, AllOf, AnyOf, PastPolicy):
    public(_kind.__name__, "stelae.schema")(_kind)

Purging: TypeAlias = PurgePolicy | Reigns | None
"""How the versions of a group are judged. Nearly all groups keep the policy they were made with, or have none."""


KEYS_ALONE = ""
"""In the place of a family's name: the puts of a key alone."""


class ByFamily(msgspec.Struct, frozen=True):
    """Some families of a group, or the puts of keys alone in it, have a past of their own."""

    own: tuple[tuple[str, Purging], ...]
    others: Purging

    def of(self, family: str) -> Purging:
        return next((purging for name, purging in self.own if name == family), self.others)


def purging_at(purging: Purging, at: Txn) -> Purging:
    """The policy that counted at a snapshot."""
    return purging.at(at) if isinstance(purging, Reigns) else purging


GroupPurging: TypeAlias = Purging | ByFamily


def group_purging_at(purging: GroupPurging, at: Txn) -> GroupPurging:
    """The policies of a group that counted at a snapshot."""
    if isinstance(purging, ByFamily):
        own = tuple((name, purging_at(each, at)) for name, each in purging.own)
        return ByFamily(own, purging_at(purging.others, at))
    return purging_at(purging, at)


def purging_of_columns(purging: GroupPurging) -> Purging:
    """How the versions of a group's columns are judged."""
    return purging.others if isinstance(purging, ByFamily) else purging


def purging_of(purging: GroupPurging, family: str) -> Purging:
    """How the versions of one family are judged."""
    return purging.of(family) if isinstance(purging, ByFamily) else purging


def print_duration(duration_us: int) -> str:
    """The duration as text, in the largest unit that holds it exactly."""
    unit = next((name for name, size in _UNITS.items() if duration_us % size == 0), "us") if duration_us else "s"
    return f"{duration_us // _UNITS.get(unit, 1)}{unit}"


def parse_duration(text: str) -> int:
    """Microseconds of `15m`, `7d` or a bare number of microseconds; InvalidSchema if the text is none."""
    if not isinstance(text, str):
        raise InvalidSchema(f"a duration is text, as in 15m, not {show(text)}")
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidSchema(
            f"{show(text)} is not a duration: write a number and one of us, ms, s, m, h, d, w, as in 15m"
        )
    return int(match[1]) * _UNITS.get((match[2] or "us").lower(), 1)


def purges(policy: PurgePolicy, newer: int, age_us: int) -> bool:
    """Whether a version with so many newer ones, of such an age, is to be deleted."""
    match policy:
        case MaxHistory(versions):
            return newer >= versions
        case MaxAge(limit_us):
            return age_us > limit_us
        case AllOf(parts):
            return all(purges(part, newer, age_us) for part in parts)
        case AnyOf(parts):
            return any(purges(part, newer, age_us) for part in parts)


def purges_newest(purging: PurgePolicy | Reigns, ts: Micros, txn: Txn, read_us: Micros) -> bool:
    """Whether a version beside which there never was a newer one is gone. Where this is false of the least ts and txn
    of several such versions, it is false of all of them."""
    if not isinstance(purging, Reigns):
        return purges(purging, 0, read_us - ts)
    for each in purging.past:
        if each.policy is not None and txn <= each.until and purges(each.policy, 0, micros_of(each.until) - ts):
            return True
    return purging.now is not None and purges(purging.now, 0, read_us - ts)


def parse_purge(text: str) -> PurgePolicy:
    """Raises InvalidSchema naming the text and what is wrong in it."""
    if not isinstance(text, str):
        raise InvalidSchema(f"a purge policy is text, as in 'max-history=3', not {show(text)}")
    if len(text) > POLICY_LENGTH_MAX:
        raise _too_long(text)
    policy = _Parser(text).parse()
    # Units and spaces that the text left out are in the canonical one, which must parse again.
    if len(str(policy)) > POLICY_LENGTH_MAX:
        raise _too_long(text)
    return policy


def _too_long(text: str) -> InvalidSchema:
    return InvalidSchema(f"purge policy {show(text)}: a policy has at most {POLICY_LENGTH_MAX} characters")


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._lex(text.rstrip())
        self._at = 0
        self._depth = 0

    def _lex(self, text: str) -> list[MaxHistory | MaxAge | str]:
        tokens: list[MaxHistory | MaxAge | str] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                rest = text[position:].strip()
                raise self._error(f"{rest!r} is neither max-history=K, max-age=T, 'and', 'or' nor a parenthesis")
            tokens.append(self._parse_condition(match) if match[1] else (match[4] or match[5]).lower())
            position = match.end()
        return tokens

    def _parse_condition(self, match: re.Match[str]) -> MaxHistory | MaxAge:
        number, unit = int(match[2][:40]), match[3]
        if match[1].lower() == "max-history":
            if unit or not 1 <= number <= HISTORY_MAX:
                raise self._error(f"max-history is a count of versions from 1 to {HISTORY_MAX}")
            return MaxHistory(number)
        age_us = number * _UNITS.get((unit or "us").lower(), 1)
        if not 1 <= age_us <= AGE_US_MAX:
            raise self._error("max-age is from 1us to 200 years")
        return MaxAge(age_us)

    def parse(self) -> PurgePolicy:
        policy = self._parse_any()
        if self._at < len(self._tokens):
            raise self._error(f"expected 'and' or 'or' before {self._tokens[self._at]}")
        return policy

    def _parse_any(self) -> PurgePolicy:
        parts = self._parse_list("or", self._parse_all)
        return parts[0] if len(parts) == 1 else AnyOf(_flat(AnyOf, parts))

    def _parse_all(self) -> PurgePolicy:
        parts = self._parse_list("and", self._parse_one)
        return parts[0] if len(parts) == 1 else AllOf(_flat(AllOf, parts))

    def _parse_list(self, word: str, operand: Callable[[], PurgePolicy]) -> list[PurgePolicy]:
        parts = [operand()]
        while self._at < len(self._tokens) and self._tokens[self._at] == word:
            self._at += 1
            parts.append(operand())
        return parts

    def _parse_one(self) -> PurgePolicy:
        token = self._tokens[self._at] if self._at < len(self._tokens) else "the end"
        self._at += 1
        match token:
            case MaxHistory() | MaxAge():
                return token
            case "(":
                return self._parse_group()
            case _:
                raise self._error(f"expected max-history=K or max-age=T, found {token}")

    def _parse_group(self) -> PurgePolicy:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._error(f"parentheses nest at most {NESTING_MAX} deep")
        policy = self._parse_any()
        if self._at >= len(self._tokens) or self._tokens[self._at] != ")":
            raise self._error("a parenthesis is not closed")
        self._at += 1
        self._depth -= 1
        return policy

    def _error(self, message: str) -> InvalidSchema:
        return InvalidSchema(f"purge policy {self._text!r}: {message}")


def _flat(kind: type[AllOf | AnyOf], parts: list[PurgePolicy]) -> tuple[PurgePolicy, ...]:
    flat: list[PurgePolicy] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, AllOf | AnyOf) and isinstance(part, kind) else (part,))
    return tuple(flat)
