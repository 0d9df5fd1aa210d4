"""The addresses a webhook may be sent to: public ones, and those the settings allow."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address

# Not public, whatever ``ipaddress`` reports (RFC 6598, 7526, 6666, 3879, 8215, 5180, 9637).
_NOT_PUBLIC = [
    ip_network(text)
    for text in (
        "100.64.0.0/10",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "100::/64",
        "fec0::/10",
        "64:ff9b:1::/48",
        "2001::/23",
        "2001:db8::/32",
        "3fff::/20",
        "5f00::/16",
    )
]
_NAT64 = IPv6Network("64:ff9b::/96")
_V4_COMPATIBLE = IPv6Network("::/96")


class Refused(Exception):
    """The webhook's host has an address that is not allowed."""


class Allowed:
    """``RETROFILL_WEBHOOK_ALLOW``: networks, and host names with any address."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._hosts: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in entries:
            try:
                self._networks.append(ip_network(entry))
            except ValueError:
                self._hosts.add(entry.lower().rstrip("."))

    def check(self, host: str, addresses: Iterable[str]) -> None:
        """Raise ``Refused`` if one of the ``addresses`` of ``host`` is not allowed."""
        if host.lower().rstrip(".") in self._hosts:
            return
        for text in addresses:
            address = ip_address(text)
            if not is_public(address) and not self._has(address):
                raise Refused(
                    f"{host} has the address {text}, which is not public: allow the host or its network with "
                    "RETROFILL_WEBHOOK_ALLOW"
                )

    def _has(self, address: Address) -> bool:
        forms = (address, embedded(address))
        return any(form in network for form in forms if form is not None for network in self._networks)


def is_public(address: Address) -> bool:
    """Whether it is a public unicast address; an embedded IPv4 address is checked instead."""
    inner = embedded(address)
    if inner is not None:
        return is_public(inner)
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local
    return address.is_global and not special and not any(address in network for network in _NOT_PUBLIC)


def embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address may route to: mapped, compatible, 6to4 or NAT64."""
    if not isinstance(address, IPv6Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or (address in _V4_COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None
