"""State machines as tables of edges, from which guarded updates, tests and docs derive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping


@dataclass(frozen=True)
class Machine:
    """The states of one entity and the edges between them.

    ``edges`` maps each state to its successors; a state without successors is terminal.
    """

    entity: str
    edges: Mapping[str, frozenset[str]]

    @property
    def states(self) -> tuple[str, ...]:
        """All states, in the order of the table."""
        return tuple(self.edges)

    @property
    def terminal(self) -> frozenset[str]:
        """States without successors."""
        return frozenset(state for state, following in self.edges.items() if not following)

    def sources(self, to: str) -> frozenset[str]:
        """States with an edge to ``to``. Raises ``KeyError`` for an unknown state."""
        self.edges[to]
        return frozenset(state for state, following in self.edges.items() if to in following)

    def allows(self, from_state: str, to: str) -> bool:
        """Whether the table has the edge ``from_state`` → ``to``."""
        return to in self.edges[from_state]


def machine(entity: str, edges: Mapping[str, Iterable[str]]) -> Machine:
    """Build a machine. Raises ``ValueError`` if a successor has no row."""
    table = {state: frozenset(following) for state, following in edges.items()}
    unknown = {following for row in table.values() for following in row} - table.keys()
    if unknown:
        raise ValueError(f"{entity}: no row for {sorted(unknown)}")
    return Machine(entity, table)
