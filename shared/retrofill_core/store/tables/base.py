"""The schema, its metadata, and the constraints and columns that several tables share."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, DateTime, MetaData, SmallInteger

from retrofill.states import Machine

SCHEMA = "retrofill"
# The newest migration, which creates these tables, and the oldest schema this release works with.
REVISION = "0001"
metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    },
)

Moment = DateTime(timezone=True)


def is_in(column: str, states: tuple[str, ...] | frozenset[str]) -> str:
    """An SQL condition: ``column`` is one of ``states``."""
    return f"{column} IN ({', '.join(repr(str(state)) for state in sorted(states))})"


def known_state(machine: Machine) -> CheckConstraint:
    return CheckConstraint(is_in("state", machine.states), name="state_known")


def ended_exactly_when_terminal(machine: Machine, column: str, ended: tuple[str, ...] | None = None) -> CheckConstraint:
    """``column`` is set exactly in the terminal states, or in those of ``ended``."""
    states = machine.terminal if ended is None else ended
    return CheckConstraint(f"({is_in('state', states)}) = ({column} IS NOT NULL)", name=f"{column}_when_terminal")


def lock_only() -> Column[int | None]:
    """A column that is never written: the grant to update it is the right to lock the row."""
    return Column("lock_only", SmallInteger)
