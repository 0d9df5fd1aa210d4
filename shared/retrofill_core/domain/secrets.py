"""Secrets where all readers would see them: in a request's conf, and in the addresses of a definition's webhooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Words of names that denote a secret, whatever stands before them in the word.
_SECRET = re.compile(
    r"[a-z]*(password|passwd|passphrase|passcode|secret|token|credential|apikey|accesskey|secretkey|privatekey)s?"
    "|pwd|pass|bearer|jwt|authorization"
)
_PASSWORD = re.compile(r"[a-z]*(password|passwd|passphrase|passcode)|pwd")
# What a key is of that opens something, and one that may also be a column. Others sort, join and partition.
_KEYS = _set("access api auth decryption encryption hmac master private secret signing ssh")
_PERHAPS_KEYS = _set(
    "account app application client consumer deploy host license service shared storage subscription webhook"
)
# A name that ends so tells something about a secret, or where it is.
_ABOUT = _set(
    "age algorithm arn budget column columns count dir directory enabled endpoint env environment expiration expires expiry "
    "field fields file format header host id ids index issuer kind length lifetime limit location manager name names path "
    "pattern policy provider ref reference required regex rotation scope scopes size store table ttl type types uri url usage "
    "user username var variable vault version"
)
# Passes over data, and tokens of texts, pages and streams.
_PASSES = _set("band by final first high last low multi next one per post pre second single third two")
_TOKENS = _set(
    "bos cls continuation end eos first input last mask max min next num output pad page per prev previous sep special start "
    "stop total unk"
)
_NO_SECRET = {"pass": _PASSES, "token": _TOKENS, "tokens": _TOKENS}
_OF_ADDRESSES = _set("auth code key sas sig signature")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Where the secret is: {secret[NAME]}, ${NAME}, {{secrets/scope/name}}, env:NAME, arn:aws:…, /run/secrets/name. Or a mask.
_REFERENCE = re.compile(
    r"\{.+\}|\$\w+|\$\{.+\}|(env|file|secret|secrets|vault|arn|ssm|awssm|gcpsm|akv|op|projects|dbfs)[:/].+|/[\w./-]+|\*+"
)
_LOGIN = re.compile(r"://[^\s/:@]*:([^\s/@]+)@")
_PAIR = re.compile(r"(?<![\w.-])([\w.-]{1,200})=(?:\"([^\"]*)\"|'([^']*)'|([^\s\"';&,)]+))")
_BY_FORM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\b[Bb]earer [\w.~+/=-]{8,}|\bBasic [\w+/=]{8,}")
# Host, path and query of an address.
_WEB = re.compile(r"https?://(?:[^/?#@]*@)?([^/?#:]*)(?::\d*)?([^?#]*)(?:\?([^#]*))?", re.IGNORECASE)
# Whoever knows such an address can write there.
_SECRET_HOSTS = (
    "hooks.slack.com", "hooks.slack-gov.com", "webhook.office.com", "outlook.office.com", "logic.azure.com",
    "api.powerplatform.com", "discord.com", "discordapp.com", "chat.googleapis.com", "api.telegram.org", "hooks.zapier.com",
    "make.com", "maker.ifttt.com", "webhook.site", "pipedream.net",
)  # fmt: skip
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")
_LONG = 16
_CHANGES = 4
# Levels of JSON in JSON.
_DEEPEST = 3


def secret_in_conf(conf: dict[str, Any]) -> str | None:
    """Where a conf has a secret, like ``conf.db.password``; ``None`` if nothing in it looks like one."""
    return next(_in_value("", conf, "conf", _DEEPEST), None)


def is_secret_address(url: str) -> bool:
    """Whether a webhook's address looks like a secret: by its service, its path or its query."""
    parts = _WEB.match(url)
    if parts is None:
        return False
    pairs = (each.partition("=") for each in (parts[3] or "").split("&"))
    return (
        _of_service(parts[1])
        or any(_is_random(step) for step in parts[2].split("/"))
        or any(_is_secret(name, value) or _opens(name, value) or _is_random(value) for name, _, value in pairs)
    )


def _in_value(name: str, value: Any, path: str, deeper: int) -> Iterator[str]:
    """The places of secrets in the ``value`` of ``name``."""
    if isinstance(value, dict):
        inherits = _denotes(_words(name)) is True
        for key, each in value.items():
            words = _words(key)
            # All of {"credentials": {"user": "a", "value": "b"}} but what says whose they are.
            own = not inherits or _denotes(words) is not None or bool(words and words[-1] in _ABOUT)
            yield from _in_value(key if own else name, each, f"{path}.{key[:100]}", deeper)
        # {"name": "password", "value": "b"}
        named = value.get("name", value.get("key"))
        if isinstance(named, str) and "value" in value:
            yield from _in_value(named, value["value"], f"{path}.value", deeper)
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from _in_value(name, each, f"{path}[{place}]", deeper)
    elif isinstance(value, str):
        if _is_secret(name, value) or _has_secret(value):
            yield path
        elif value.lstrip()[:1] in ("{", "[", '"') and deeper:
            yield from _in_json(name, value, path, deeper - 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        # Other numbers count something.
        words = _words(name)
        if _denotes(words) and _PASSWORD.fullmatch(words[-1]):
            yield path


def _in_json(name: str, text: str, path: str, deeper: int) -> Iterator[str]:
    try:
        yield from _in_value(name, json.loads(text), path, deeper)
    except (ValueError, RecursionError):
        return


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _denotes(words: Sequence[str]) -> bool | None:
    """Whether the words of a name denote a secret; false if only a value that looks like one is one."""
    found: bool | None = None
    for before, word in zip(["", *words], words, strict=False):
        if word in ("key", "keys"):
            found = True if before in _KEYS else False if before in _PERHAPS_KEYS and found is None else found
        elif _SECRET.fullmatch(word) and before not in _NO_SECRET.get(word, ()):
            found = True
    return False if found and words[-1] in _ABOUT else found


def _is_secret(name: str, text: str) -> bool:
    """Whether the text is a secret by its name."""
    words = _words(name)
    denotes = _denotes(words)
    if denotes is None or not text.strip() or _REFERENCE.fullmatch(text.strip()):
        return False
    is_number_of_tokens = words[-1] == "tokens" and re.fullmatch(r"[\d_.,]+", text) is not None
    return (denotes or _is_random(text)) and not is_number_of_tokens


def _has_secret(text: str) -> bool:
    """Whether a text contains a secret: a login, name=value, or what is one by its form."""
    web = _WEB.match(text)
    for found in _LOGIN.finditer(text):
        if not _REFERENCE.fullmatch(found[1]):
            return True
    for found in _PAIR.finditer(text):
        name, value = found[1], next(filter(None, found.groups()[1:]), "")
        if _is_secret(name, value) or (web and _opens(name, value)):
            return True
    return _BY_FORM.search(text) is not None or (web is not None and _of_service(web[1]))


def _opens(name: str, value: str) -> bool:
    """Whether a parameter of an address gives access to it."""
    last = _words(name)[-1:]
    return last in (["sig"], ["signature"]) or (bool(last) and last[0] in _OF_ADDRESSES and _is_random(value))


def _of_service(host: str) -> bool:
    host = host.lower().rstrip(".")
    return any(host == each or host.endswith(f".{each}") for each in _SECRET_HOSTS)


def _is_random(text: str) -> bool:
    """Whether nobody has thought of this text: long, and often changing between letters and digits."""
    plain = re.sub(r"[^A-Za-z0-9]", "", text)
    changes = sum(a.isdigit() != b.isdigit() for a, b in pairwise(plain))
    return _UUID.fullmatch(text) is not None or (len(plain) >= _LONG and changes >= _CHANGES)
