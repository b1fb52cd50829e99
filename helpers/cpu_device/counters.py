"""What a launch did, in exact integers: per launch, per array, per line; and the map of who touched what, when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

SPACES = ("global", "shared", "local", "variable", "other")
KINDS = ("load", "store", "atomic")


class Row(NamedTuple):
    """The counters of one instruction on one array."""

    line: int | None
    file: str | None
    space: str
    kind: str
    array: str
    bytes_each: int
    instructions: int  # one for each thread that takes part
    requests: int      # one for each warp
    bytes: int
    sectors: int
    wavefronts: int
    extra_wavefronts: int


class Totals(NamedTuple):
    """Sums over some rows.  `sectors` are the distinct 32-byte pieces of global memory each request touches."""

    instructions: int
    requests: int
    bytes: int
    sectors: int
    wavefronts: int
    extra_wavefronts: int


def _totals(rows) -> Totals:
    rows = list(rows)
    return Totals(*(sum(getattr(r, name) for r in rows) for name in Totals._fields))


@dataclass
class Counters:
    """Counters of one launch.  The same integers on every machine.

    Attributes: `loads`, `stores`, `atomics` (global memory), `shared_loads`, `shared_stores`, `local` - each a `Totals`;
    `barriers` (one for each block), `shuffles` (one for each warp), `exps`, `logs`, `divisions` (one for each thread);
    `blocks`, `threads`.  `of("x")` gives `(loads, stores)` of one array; `by_line()` the rows with their lines.
    """

    rows: list[Row]
    barriers: int = 0
    shuffles: int = 0
    exps: int = 0
    logs: int = 0
    divisions: int = 0
    blocks: int = 0
    threads: int = 0
    events: np.ndarray | None = field(default=None, repr=False)

    def _select(self, space, kind, array=None) -> Totals:
        return _totals(r for r in self.rows if r.space == space and r.kind == kind and (array is None or r.array == array))

    loads = property(lambda self: self._select("global", "load"))
    stores = property(lambda self: self._select("global", "store"))
    atomics = property(lambda self: self._select("global", "atomic"))
    shared_loads = property(lambda self: self._select("shared", "load"))
    shared_stores = property(lambda self: self._select("shared", "store"))
    local = property(lambda self: _totals(r for r in self.rows if r.space == "local"))

    def of(self, array: str) -> tuple[Totals, Totals]:
        """(loads, stores) of the global array that was passed as parameter `array`."""
        names = {r.array for r in self.rows if r.space == "global"}
        if array not in names:
            raise KeyError(f"no counted access to {array!r}; this launch touched {', '.join(sorted(names)) or 'nothing'}")
        return self._select("global", "load", array), self._select("global", "store", array)

    def by_line(self) -> list[Row]:
        """One row for each line, space, kind and array, in the order of the source."""
        groups: dict[tuple, list[Row]] = {}
        for r in self.rows:
            groups.setdefault((r.file or "", r.line or 0, r.space, r.kind, r.array, r.bytes_each), []).append(r)
        return [Row(line, file, space, kind, array, each, *_totals(rows))
                for (file, line, space, kind, array, each), rows in sorted(groups.items())]

    def table(self) -> list[tuple[str, int]]:
        """(name, number) pairs, the rows of the table view."""
        pairs = []
        for title, t in (("global loads", self.loads), ("global stores", self.stores)):
            pairs += [(f"{title}: instructions", t.instructions), (f"{title}: requests", t.requests),
                      (f"{title}: bytes", t.bytes), (f"{title}: sectors", t.sectors)]
        if self.atomics.instructions:
            pairs.append(("global atomics", self.atomics.instructions))
        for title, t in (("shared loads", self.shared_loads), ("shared stores", self.shared_stores)):
            if t.instructions:
                pairs += [(f"{title}: requests", t.requests), (f"{title}: extra wavefronts", t.extra_wavefronts)]
        if self.local.instructions:
            pairs.append(("local memory: instructions", self.local.instructions))
        pairs += [(name, n) for name, n in (("barriers", self.barriers), ("shuffles", self.shuffles), ("exp", self.exps),
                                            ("log", self.logs), ("division", self.divisions)) if n]
        return pairs

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.table())
        return "\n".join(f"{name:{width}} {number:>14,}" for name, number in self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td style='text-align:left'>{name}</td><td>{number:,}</td></tr>" for name, number in self.table())
        return f"<table><tbody>{rows}</tbody></table>"
