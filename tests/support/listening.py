"""The listening sockets of processes."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

import psutil


def beyond_loopback(processes: Iterable[psutil.Process]) -> list[str]:
    """The non-loopback listening sockets of these processes and their descendants."""
    return [f"{name} {ip}:{port}" for name, ip, port in listening(processes) if not _is_loopback(ip)]


def listening(processes: Iterable[psutil.Process]) -> list[tuple[str, str, int]]:
    """Each listening socket of these processes and their descendants: process, address, port."""
    found = []
    for process in {each for one in processes for each in (one, *one.children(recursive=True))}:
        try:
            what = " ".join(process.cmdline())[-80:]
            sockets = process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        found += [(what, s.laddr.ip, s.laddr.port) for s in sockets if s.status == psutil.CONN_LISTEN]
    return found


def _is_loopback(ip: str) -> bool:
    address = ip_address(ip)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
