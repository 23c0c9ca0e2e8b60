"""The catalog's rules once more, as plainly as they can be said: dicts, and no sharing of code with the real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WIDER = {"int8": 0, "int16": 1, "int32": 2, "int64": 3}


class Refused(Exception):
    pass


def require(holds: bool) -> None:
    if not holds:
        raise Refused


@dataclass
class PlainTable:
    """`homes`: the group of each column."""

    zone: str
    columns: dict[str, str] = field(default_factory=dict)
    families: list[str] = field(default_factory=list)
    homes: dict[str, str] = field(default_factory=dict)
    groups: list[str] = field(default_factory=lambda: ["data"])

    def judge(self) -> None:
        require(len(set(self.groups)) == len(self.groups))
        require(all(group in self.homes.values() for group in self.groups))


@dataclass
class PlainCatalog:
    namespaces: set[str] = field(default_factory=lambda: {"default", "system"})
    zones: dict[str, int] = field(default_factory=lambda: {"default": 1})
    default_zone: str = "default"
    tables: dict[tuple[str, str], PlainTable] = field(default_factory=dict)
    dropped: list[tuple[str, str, PlainTable]] = field(default_factory=list)

    def end_batch(self) -> None:
        for table in self.tables.values():
            table.judge()

    def add_group(self, at: tuple[str, str], group: str) -> None:
        table = self._table(at)
        table.groups.append(group)

    def drop_group(self, at: tuple[str, str], group: str) -> None:
        table = self._table(at)
        require(group in table.groups)
        table.groups.remove(group)
        table.columns = {name: type_ for name, type_ in table.columns.items() if table.homes[name] != group}
        table.homes = {name: home for name, home in table.homes.items() if home != group}

    def move_columns(self, at: tuple[str, str], columns: tuple[str, ...], group: str) -> None:
        table = self._table(at)
        require(group in table.groups and all(column in table.columns for column in columns))
        table.homes |= dict.fromkeys(columns, group)

    def run(self, verb: str, *arguments: Any) -> None:
        getattr(self, verb)(*arguments)

    def _free(self, namespace: str, name: str) -> None:
        require(namespace in self.namespaces and (namespace, name) not in self.tables)

    def _table(self, at: tuple[str, str]) -> PlainTable:
        require(at in self.tables)
        return self.tables[at]

    def create_namespace(self, name: str) -> None:
        require(name not in self.namespaces)
        self.namespaces.add(name)

    def drop_namespace(self, name: str) -> None:
        require(name in self.namespaces and name not in ("default", "system"))
        require(not any(namespace == name for namespace, _ in self.tables))
        self.namespaces.remove(name)

    def create_zone(self, name: str, replicas: int) -> None:
        require(name not in self.zones and 1 <= replicas <= 16)
        self.zones[name] = replicas

    def alter_zone(self, name: str, replicas: int) -> None:
        require(name in self.zones and 1 <= replicas <= 16)
        self.zones[name] = replicas

    def rename_zone(self, name: str, new: str) -> None:
        require(name in self.zones and (new == name or new not in self.zones))
        self.zones[new] = self.zones.pop(name)
        self.default_zone = new if self.default_zone == name else self.default_zone
        for table in [*self.tables.values(), *(table for _, _, table in self.dropped)]:
            table.zone = new if table.zone == name else table.zone

    def drop_zone(self, name: str) -> None:
        require(name in self.zones and name != self.default_zone)
        require(not any(table.zone == name for table in self.tables.values()))
        del self.zones[name]
        for _, _, table in self.dropped:
            table.zone = "" if table.zone == name else table.zone

    def set_default_zone(self, name: str) -> None:
        require(name in self.zones)
        self.default_zone = name

    def create_table(self, namespace: str, name: str, zone: str | None) -> None:
        self._free(namespace, name)
        require(zone is None or zone in self.zones)
        self.tables[namespace, name] = PlainTable(
            zone or self.default_zone,
            {"name": "string", "age": "int32"},
            ["click"],
            {"name": "data", "age": "data"},
        )

    def drop_table(self, namespace: str, name: str) -> None:
        table = self._table((namespace, name))
        del self.tables[namespace, name]
        self.dropped.append((namespace, name, table))

    def recall_table(self, namespace: str, name: str, new: str | None) -> None:
        found = [i for i, (n, t, _) in enumerate(self.dropped) if (n, t) == (namespace, name)]
        require(bool(found))
        old_namespace, _, table = self.dropped[found[-1]]
        target = (old_namespace if old_namespace in self.namespaces else "default", new or name)
        self._free(*target)
        del self.dropped[found[-1]]
        table.zone = table.zone or self.default_zone
        self.tables[target] = table

    def rename_table(self, namespace: str, name: str, new_namespace: str, new: str) -> None:
        table = self._table((namespace, name))
        require(new_namespace in self.namespaces)
        if (namespace, name) == (new_namespace, new):
            return
        self._free(new_namespace, new)
        del self.tables[namespace, name]
        self.tables[new_namespace, new] = table

    def add_column(self, at: tuple[str, str], column: str, type_: str) -> None:
        table = self._table(at)
        require(column not in table.columns and column not in table.families and column != "id")
        table.columns[column] = type_
        table.homes[column] = "data"
        require("data" in table.groups)
        table.judge()

    def drop_column(self, at: tuple[str, str], column: str) -> None:
        table = self._table(at)
        require(column in table.columns)
        del table.columns[column], table.homes[column]
        table.judge()

    def widen_column(self, at: tuple[str, str], column: str, type_: str) -> None:
        table = self._table(at)
        old = table.columns.get(column)
        require(old in WIDER and WIDER[type_] >= WIDER[str(old)])
        if old != type_:
            table.columns[column] = type_
            table.judge()

    def rename_column(self, at: tuple[str, str], column: str, new: str) -> None:
        table = self._table(at)
        require(column in table.columns)
        require(new == column or (new not in table.columns and new not in table.families and new != "id"))
        if new == column:
            return
        table.columns = {new if name == column else name: type_ for name, type_ in table.columns.items()}
        table.homes = {new if name == column else name: home for name, home in table.homes.items()}
        table.judge()

    def add_family(self, at: tuple[str, str], family: str) -> None:
        table = self._table(at)
        require(family not in table.families and family not in table.columns)
        table.families.append(family)
        table.judge()

    def drop_family(self, at: tuple[str, str], family: str) -> None:
        table = self._table(at)
        require(family in table.families and len(table.families) > 1)
        table.families.remove(family)
        table.judge()

    def summary(self) -> dict[str, Any]:
        return {
            "namespaces": sorted(self.namespaces),
            "zones": dict(sorted(self.zones.items())),
            "default_zone": self.default_zone,
            "tables": {
                f"{n}.{t}": (table.zone, table.columns, table.families, sorted(table.homes.items()))
                for (n, t), table in sorted(self.tables.items())
            },
            "dropped": len(self.dropped),
        }
