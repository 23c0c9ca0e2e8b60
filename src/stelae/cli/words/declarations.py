"""How tables are typed on a command line.

    --key "id string"                                     NAME TYPE, several with commas: the key columns in order
    --columns "profile: age int32 not null default 0"     GROUP: NAME TYPE [not null] [default LITERAL], ...
    --cells "events: click, view"                         GROUP: FAMILY, ...; GROUP alone takes every family
    --purge "events: max-age=7d"                          GROUP: POLICY
    --option "profile: in_memory=yes"                     GROUP: OPTION=VALUE, ...

A name that has spaces, commas or colons stands in backquotes. Commas inside brackets and quotes separate nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from stelae.model.declare import GroupSpec, cells, columns
from stelae.model.errors import InvalidArgument, nearest
from stelae.model.schema import WILDCARD

T = TypeVar("T")

GROUP_OPTIONS = ("compression", "block_bytes", "in_memory", "bloom")

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:,`=]+))")
_OPENING, _CLOSING, _QUOTES = "<([", ">)]", "\"'`"


def typed_columns(text: str, option: str) -> dict[str, str]:
    """`name string, age int32 not null` by name; none if there is nothing but space."""
    found: dict[str, str] = {}
    for part in _separated(text) if text.strip() else ():
        name, rest = _named(part, option)
        if not rest.strip():
            raise InvalidArgument(f"{option} {text!r}: column {name!r} has no type; write {name} string")
        if name in found:
            raise InvalidArgument(f"{option} {text!r}: column {name!r} is there twice")
        found[name] = rest.strip()
    return found


def listed_names(text: str, option: str) -> list[str]:
    """`click, view`"""
    found = []
    for part in _separated(text):
        if part.strip() == WILDCARD:
            found.append(WILDCARD)
            continue
        name, rest = _named(part, option)
        if rest.strip():
            raise InvalidArgument(
                f"{option} {text!r}: after {name!r} stands {rest.strip()!r}; separate names by commas"
            )
        found.append(name)
    return found


def key_names_or_types(text: str, option: str) -> dict[str, str] | list[str]:
    """A declared key, or with names alone the columns of something that has types already."""
    parts = [_named(part, option) for part in _separated(text)]
    if any(rest.strip() for _, rest in parts):
        return typed_columns(text, option)
    return [name for name, _ in parts]


def by_group(texts: Iterable[str], option: str, read: Callable[[str, str], T], *, example: str) -> list[tuple[str, T]]:
    """`GROUP: ...` of an option that may be given again."""
    found: list[tuple[str, T]] = []
    for text in texts:
        match = _NAME.match(text)
        behind = text[match.end() :].lstrip() if match else ""
        if match is None or not behind.startswith(":"):
            raise InvalidArgument(f"{option} {text!r}: begin with the group, as in {option} {example!r}")
        found.append((_unquoted(match), read(behind[1:], option)))
    return found


def cells_groups(texts: Iterable[str], option: str = "--cells") -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for text in texts:
        match = _NAME.fullmatch(text.strip())
        if match:
            found.append((_unquoted(match), [WILDCARD]))
        else:
            found += by_group([text], option, listed_names, example="events: click, view")
    return found


def once_by_group(
    texts: Iterable[str] | None, option: str, read: Callable[[str, str], T], *, example: str
) -> dict[str, T]:
    """The same, with each group at most once."""
    found: dict[str, T] = {}
    for group, said in by_group(texts or (), option, read, example=example):
        if group in found:
            raise InvalidArgument(f"{option}: group {group!r} is given twice; say all of it at once")
        found[group] = said
    return found


def policy_text(text: str, _option: str) -> str:
    return text.strip()


_YES, _NO = ("yes", "true", "on"), ("no", "false", "off")


def group_options(text: str, option: str) -> dict[str, Any]:
    """`in_memory=yes, block_bytes=65536`: words for yes and no, numbers, and other texts as they are."""
    found: dict[str, Any] = {}
    for part in _separated(text):
        name, sign, said = (word.strip() for word in part.partition("="))
        if not sign or not name or not said:
            raise InvalidArgument(f"{option} {text.strip()!r}: write {option} 'profile: in_memory=yes'")
        if name == "purge":
            raise InvalidArgument(f"{option} {text.strip()!r}: a purge policy is said by --purge")
        if said.lower() in (*_YES, *_NO):
            found[name] = said.lower() in _YES
        else:
            found[name] = int(said) if said.isdecimal() else said
    return found


def declared_groups(
    columns_: Iterable[str],
    cells_: Iterable[str],
    policies: dict[str, str],
    options: dict[str, dict[str, Any]],
    *,
    names: tuple[str, str] = ("--columns", "--cells"),
) -> list[GroupSpec]:
    """Groups with their policies and options, which are taken out of what is given: what is left over is of none of
    them. `names`: of the two options, for messages."""
    typed = by_group(columns_, names[0], typed_columns, example="profile: name string")
    families = cells_groups(cells_, names[1])
    for name, chosen in options.items():
        unknown = next((each for each in chosen if each not in GROUP_OPTIONS), None)
        if unknown is not None:
            raise InvalidArgument(
                f"--option for group {name!r}: no option {unknown!r}{nearest(unknown, GROUP_OPTIONS)}; there are "
                f"{', '.join(GROUP_OPTIONS)}"
            )

    def kept(name: str) -> dict[str, Any]:
        return {"purge": policies.pop(name, None), **options.pop(name, {})}

    groups: list[GroupSpec] = [columns(name, types, **kept(name)) for name, types in typed]
    groups += [cells(name, these, **kept(name)) for name, these in families]
    return groups


def renamings(texts: Iterable[str], option: str) -> dict[str, str]:
    """`old=new`"""
    found: dict[str, str] = {}
    for text in texts:
        old, sign, new = text.partition("=")
        if not sign or not old.strip() or not new.strip():
            raise InvalidArgument(f"{option} {text!r}: write {option} old=new")
        found[old.strip()] = new.strip()
    return found


def _named(part: str, option: str) -> tuple[str, str]:
    match = _NAME.match(part)
    if match is None:
        said = f"{part.strip()!r} does not begin with a name" if part.strip() else "a name is missing"
        raise InvalidArgument(f"{option}: {said}; names with odd characters stand in backquotes")
    return _unquoted(match), part[match.end() :]


def _unquoted(match: re.Match[str]) -> str:
    return match[1].replace("``", "`") if match[1] is not None else match[2]


def _separated(text: str) -> list[str]:
    """At commas that stand in no brackets and no quotes."""
    parts, start, depth, quote = [], 0, 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]
