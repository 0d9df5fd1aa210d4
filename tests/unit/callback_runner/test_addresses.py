"""Addresses that count as public, and others that the settings allow."""

from ipaddress import ip_address

import pytest

from callback_runner.sender import Allowed, Refused, is_public


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.0", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)
def test_public_addresses(address):
    assert is_public(ip_address(address))
    Allowed([]).check("example.org", [address])


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("192.0.0.8", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
        *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "fe80::1%1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "100::1"),
        *("2001:db8::1", "2001::1", "3fff::1", "5f00::1", "64:ff9b:1::808:808"),
        *("::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::1"),
    ],
)
def test_addresses_that_are_not_public(address):
    assert not is_public(ip_address(address))
    with pytest.raises(Refused, match="is not public"):
        Allowed([]).check("example.org", [address])


def test_one_private_address_among_public_ones_is_enough():
    with pytest.raises(Refused, match=r"rebind\.example has the address 10\.0\.0\.1"):
        Allowed([]).check("rebind.example", ["8.8.8.8", "10.0.0.1"])


def test_a_host_that_is_allowed_may_have_any_address():
    Allowed(["Hooks.Internal"]).check("hooks.internal.", ["10.0.0.1", "::1"])
    with pytest.raises(Refused):
        Allowed(["hooks.internal"]).check("more.hooks.internal", ["10.0.0.1"])


def test_a_network_that_is_allowed_counts_for_every_name():
    allowed = Allowed(["10.1.0.0/16", "::1"])
    allowed.check("one.example", ["10.1.2.3", "::1", "::ffff:10.1.2.3"])
    with pytest.raises(Refused):
        allowed.check("one.example", ["10.2.0.1"])
