"""What users say of a table as a whole, as one request: a new table, or all changes of one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from stelae.catalog.objects import TableProperties
from stelae.client.arguments.keys import cuts_of
from stelae.client.calls.brief import told_briefly
from stelae.client.intake.frames import is_frame, part_of_frame
from stelae.model.arrow import from_arrow
from stelae.model.declare import CellsSpec, ColumnsSpec, GroupSpec, columns, declare
from stelae.model.errors import InvalidArgument, InvalidSchema, nearest
from stelae.model.purge import parse_duration
from stelae.model.schema import WILDCARD
from stelae.model.values import show
from stelae.service.tables import AlterAsk, CreateAsk, GroupAsk, OptionsAsk

LIKE_GROUP = "data"
"""What the single group of a table made `like` something is called."""


@told_briefly
def create_ask(
    name: str,
    key: Mapping[str, str] | Sequence[str] | str | None,
    groups: Sequence[Any] | None,
    *,
    like: Any,
    splits: Sequence[object] | None,
    partition: str,
    tablets: int | None,
    zone: str | None,
    if_not_exists: bool,
    retention: str | None,
    comment: str | None,
) -> CreateAsk:
    what = f"table {show(name)}"
    _check_text("the name of a table", name)
    if partition not in ("range", "hash"):
        raise InvalidArgument(f"{what}: partition= is 'range' or 'hash', not {show(partition)}")
    if (groups is None) == (like is None):
        raise InvalidArgument(f"{what}: give its groups, or like= what it is to be, and not both")
    try:
        if like is not None:
            key, groups = _like(like, key)
        keys: Any = key
        schema = declare(keys, groups or (), hashed=partition == "hash")
        cuts = cuts_of(schema, splits, tablets)
    except (InvalidArgument, InvalidSchema) as error:
        raise type(error)(f"{what}: {error}") from None
    return CreateAsk(name, schema, cuts, zone, _properties(what, retention, comment), if_not_exists)


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{what} is text, not {show(value)}")


def _properties(what: str, retention: str | None, comment: str | None) -> TableProperties | None:
    if retention is None and comment is None:
        return None
    said: dict[str, Any] = {}
    if retention is not None:
        _check_text(f"{what}: retention, such as '15m',", retention)
        said["retention_us"] = parse_duration(retention)
    if comment is not None:
        if not isinstance(comment, str):
            raise InvalidArgument(f"{what}: a comment is text, not {show(comment)}")
        said["comment"] = comment
    return TableProperties(**said)


def _like(like: Any, key: Any) -> tuple[Mapping[str, str], list[GroupSpec]]:
    """The key and the single group of a table that holds what an Arrow schema or a frame has."""
    texts = _texts(like)
    if isinstance(key, Mapping):
        keys = dict(key)
    else:
        names = [key] if isinstance(key, str) else list(key) if isinstance(key, Iterable) else []
        if not names:
            raise InvalidArgument(f'key= names the key columns of it, as in key=["id"], not {show(key)}')
        for name in names:
            if name not in texts:
                raise InvalidArgument(f"key= {show(name)}: there is no such column{nearest(str(name), texts)}")
        keys = {name: texts[name].removesuffix(_NOT_NULL) for name in names}
    return keys, [columns(LIKE_GROUP, {name: text for name, text in texts.items() if name not in keys})]


_NOT_NULL = " not null"


def _texts(like: Any) -> dict[str, str]:
    """Columns as they are declared."""
    if isinstance(like, pa.Schema):
        fields = [(field.name, field.type, field.nullable) for field in like]
    elif isinstance(like, pa.Table | pa.RecordBatch):
        return _texts(like.schema)
    elif is_frame(like):
        fields = []
        for name, given in part_of_frame(like).columns:
            if not isinstance(name, str):
                raise InvalidSchema(f"the name of a column is text, not {show(name)}")
            fields.append((name, _type_of(name, given), True))
    else:
        raise InvalidArgument(f"like= is an Arrow schema or a frame, not {show(like)}")
    texts: dict[str, str] = {}
    for name, type_, nullable in fields:
        if name in texts:
            raise InvalidSchema(f"column {name!r} is there twice")
        texts[name] = f"{from_arrow(type_, name)}{'' if nullable else _NOT_NULL}"
    return texts


def _type_of(name: str, given: Any) -> pa.DataType:
    if isinstance(given, pa.Array):
        return given.type
    try:
        return pa.array(given).type
    except pa.ArrowException as error:
        raise InvalidSchema(f"column {name!r}: its values are of no one type: {error}") from None


@told_briefly
def alter_ask(
    *,
    add: Mapping[str, Mapping[str, str]] | None,
    drop: Sequence[str] | None,
    widen: Mapping[str, str] | None,
    rename_columns: Mapping[str, str] | None,
    add_families: Mapping[str, Sequence[str]] | None,
    purge: Mapping[str, str | None] | None,
    rename: str | None,
    drop_families: Sequence[str] | None,
    rename_families: Mapping[str, str] | None,
    drop_not_null: Sequence[str] | None,
    retention: str | None,
    comment: str | None,
    zone: str | None,
    add_groups: Sequence[Any] | None,
    drop_groups: Sequence[str] | None,
    move: Mapping[str, Sequence[str]] | None,
    options: Mapping[str, Mapping[str, Any]] | None,
) -> AlterAsk:
    properties = {"retention": retention, "comment": comment}
    for what, text in (("rename", rename), ("zone", zone), *properties.items()):
        if text is not None and not isinstance(text, str):
            raise InvalidArgument(f"{what}= is text, not {show(text)}")
    added = {group: _texts_by_name(f"add= for group {group!r}", these) for group, these in _dict("add", add).items()}
    ask = AlterAsk(
        drop=names_given("drop", drop),
        drop_families=names_given("drop_families", drop_families),
        rename_columns=_texts_by_name("rename_columns=", rename_columns),
        rename_families=_texts_by_name("rename_families=", rename_families),
        widen=_texts_by_name("widen=", widen),
        drop_not_null=names_given("drop_not_null", drop_not_null),
        add_groups=tuple(_group_ask(group) for group in _specs(add_groups)),
        move={group: names_given("move", names) for group, names in _dict("move", move).items()},
        drop_groups=names_given("drop_groups", drop_groups),
        add=added,
        add_families={
            group: names_given("add_families", names) for group, names in _dict("add_families", add_families).items()
        },
        purge={group: "none" if policy is None else policy for group, policy in _dict("purge", purge).items()},
        options={group: _options_ask(group, these) for group, these in _dict("options", options).items()},
        properties={name: text for name, text in properties.items() if text is not None},
        zone=zone,
        rename=rename,
    )
    if ask == AlterAsk():
        raise InvalidArgument("nothing is to be altered: say what, as in add={'profile': {'email': 'string'}}")
    return ask


def _specs(given: Sequence[Any] | None) -> Sequence[Any]:
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise InvalidArgument(f"add_groups= is a list of columns(...) and cells(...), not {show(given)}")
    return given


def _group_ask(spec: Any) -> GroupAsk:
    """As texts, which is how it is sent: `registry.alterations` reads them again."""
    if not isinstance(spec, ColumnsSpec | CellsSpec):
        raise InvalidArgument(f"add_groups=: a group is said by columns(...) or cells(...), not by {show(spec)}")
    options = spec.options
    texts, families = None, None
    if isinstance(spec, ColumnsSpec):
        texts = {each.name: str(each) for each in spec.columns}
    else:
        families = (WILDCARD,) if spec.wildcard else spec.families
    return GroupAsk(
        name=spec.name,
        columns=texts,
        families=families,
        purge=None if options.purge is None else str(options.purge),
        compression=options.compression,
        block_bytes=options.block_bytes,
        in_memory=options.in_memory,
        bloom=options.bloom,
    )


_OPTIONS = {"compression": str, "block_bytes": int, "in_memory": bool, "bloom": bool}


def _options_ask(group: str, given: Any) -> OptionsAsk:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"options= for group {group!r} is a dict by option, not {show(given)}")
    for name, value in given.items():
        kind = _OPTIONS.get(name)
        if kind is None:
            hint = " (a purge policy has an argument of its own, purge=)" if name == "purge" else ""
            raise InvalidArgument(
                f"options= for group {group!r}: no option {show(name)}{nearest(str(name), _OPTIONS)}; there are "
                f"{', '.join(_OPTIONS)}{hint}"
            )
        if type(value) is not kind:
            raise InvalidArgument(f"options= for group {group!r}: {name} is {show(value)}, not a {kind.__name__}")
    return OptionsAsk(**given)


def _dict(what: str, given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidArgument(f"{what}= is a dict by name, not {show(given)}")
    return dict(given)


def _texts_by_name(what: str, given: Mapping[str, Any] | None) -> dict[str, str]:
    found = _dict(what.removesuffix("="), given)
    for name, text in found.items():
        if not isinstance(text, str):
            raise InvalidArgument(f"{what} {name!r}: {show(text)} is no text")
    return found


def names_given(what: str, given: Sequence[str] | None) -> tuple[str, ...]:
    """A list of names as a tuple; None is an empty one. `what`: the argument, for the message."""
    if given is None:
        return ()
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidArgument(f"{what}= is a list of names, not {show(given)}")
    names = tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgument(f"{what}=: {show(name)} is no name")
    return names
