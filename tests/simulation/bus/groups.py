"""A consumer group with an adversarial coordinator.

The assignment may change at any time, and members may not know.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Place = tuple[str, int]


@dataclass(eq=False)
class Member:
    """One consumer as the coordinator knows it.

    ``expelled``: removed from the group, possibly without its knowledge.
    """

    name: str
    wake: object
    owned: set[Place] = field(default_factory=set)  # assigned and not yet revoked
    expelled: bool = False


class Group:
    """Members and the target assignment.

    A partition is assigned once its former owner has released it or left.
    """

    def __init__(self, topics: list[str], partitions: int, chance: random.Random) -> None:
        self.topics = topics
        self.partitions = partitions
        self.members: list[Member] = []
        self.target: dict[int, Member] = {}
        self.offsets: dict[Place, int] = {}
        self._chance = chance
        # After partitions were added, topics differ in size and are no longer assigned together.
        self._scattered: dict[Place, Member] | None = None
        self._places: list[Place] = []

    def join(self, member: Member) -> None:
        self.members.append(member)
        self.rebalance()

    def leave(self, member: Member) -> None:
        """Remove a member, whether it knows or not: its partitions are free immediately."""
        if member in self.members:
            self.members.remove(member)
            member.expelled = True
            self.rebalance()

    def rebalance(self) -> None:
        """Choose another target: any assignment that gives each partition to one member."""
        if self._scattered is not None:
            self._scattered = {place: self._chance.choice(self.members) for place in self._places if self.members}
        self.target = {p: self._chance.choice(self.members) for p in range(self.partitions) if self.members}

    def wanted(self, member: Member) -> set[Place]:
        """Target partitions of ``member``."""
        if self._scattered is not None:
            return {place for place, owner in self._scattered.items() if owner is member}
        return {(topic, p) for p, owner in self.target.items() if owner is member for topic in self.topics}

    def grown(self, logs: Mapping[str, Sequence[object]]) -> None:
        """Include partitions that were added to topics of the group."""
        self._places = [(topic, p) for topic in self.topics for p in range(len(logs[topic]))]
        self._scattered = {}
        self.rebalance()

    def free(self, place: Place) -> bool:
        """Whether no current member owns the partition."""
        return not any(place in member.owned for member in self.members)

    def owner(self, place: Place) -> Any:
        """The member that owns the partition."""
        return next((member for member in self.members if place in member.owned), None)
