"""Secrets in a request's conf and in a webhook's address, and what only looks like one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrofill_core.domain.secrets import is_secret_address, secret_in_conf

RANDOM = "k3Jw9xPq2LmZ7vT4"
SECRET_NAMES = """
password Password PASSWORD dbPassword db_password db-password db.password spark.db.password passwordProd password_2
new_password passwd pwd pass db_pass passphrase secret clientSecret client_secret CLIENT_SECRET aws_secret_access_key
secretKey secretkey token tokens apiToken api_token accessToken authtoken refresh-token bearer jwt_token authorization
credential credentials google_credentials_json api_key apiKey APIKey apikey API_KEY x-api-key private_key
ssh_private_key encryption_key signing.key fs.s3a.access.key ACCESS_KEY
"""
OTHER_NAMES = """
partition_key partitionKey sort_key primary_key foreign_keys join_keys key keys keyspace keyboard monkey public_key
customer_key account_key client_key tokenizer tokenize tokenization detokenizer pad_token eosToken max_tokens
stop_tokens next_page_token secretary secretariat passenger passengers compass bypass first_pass second_pass author
password_policy password_column token_type token_url token_limit secret_name secret_id access_key_id credentials_file
password_env passwordVariable api_key_name signature sigma path authorization_url
"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
@pytest.mark.parametrize("value", ["hunter2", ["a", "hunter2"], {"x": "hunter2"}])
def test_a_secret_is_recognized_by_its_name(name: str, value: Any) -> None:
    assert (secret_in_conf({name: value}) or "").startswith(f"conf.{name}")
    assert (secret_in_conf({"a": [{"b": {name: value}}]}) or "").startswith(f"conf.a[0].b.{name}")
    assert secret_in_conf({"a": json.dumps({name: value})})


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_other_names_are_none(name: str) -> None:
    assert secret_in_conf({name: "day", "x": {name: ["day", "hour"]}}) is None


@pytest.mark.parametrize("name", ["account_key", "client_key", "password_id", "secret_id"])
def test_what_may_be_one_is_one_if_it_looks_so(name: str) -> None:
    assert secret_in_conf({name: RANDOM}) == f"conf.{name}"
    assert secret_in_conf({name: "3f2a1c9e-5b7d-4e21-9c3a-0d1e2f3a4b5c"}) == f"conf.{name}"


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["day", "2020-01-01", "s3://lake/x", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["day", "out", "keys"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(PLAIN, st.lists(st.sampled_from(["list", "object", "text"]), max_size=4), st.sampled_from(SECRET_NAMES.split()))
def test_a_secret_is_found_wherever_it_is(plain: Any, steps: list[str], name: str) -> None:
    assert secret_in_conf({"a": plain}) is None
    value: Any = {"day": plain, name: "hunter2"}
    # No deeper in JSON in JSON.
    texts = [place for place, step in enumerate(steps) if step == "text"][:2]
    for place, step in enumerate(steps):
        if step == "list":
            value = [plain, value]
        elif step == "object":
            value = {"out": value, "in": plain}
        elif place in texts:
            value = json.dumps(value)
    assert secret_in_conf({"a": plain, "b": value}) is not None


@pytest.mark.parametrize(
    "value",
    [
        "",
        None,
        True,
        "{secret[SALES_DB]}",
        "${SALES_DB}",
        "$SALES_DB",
        "{{secrets/prod/sales}}",
        "env:SALES_DB",
        "vault:kv/sales#password",
        "arn:aws:secretsmanager:eu-west-1:1:secret:sales",
        "/run/secrets/sales",
        "***",
        {"file": "sales", "user": "reader", "name": "SALES_DB"},
        {"secret_name": "SALES_DB"},
    ],
)
def test_where_it_is_may_be_said(value: Any) -> None:
    assert secret_in_conf({"password": value, "api_token": value}) is None


@pytest.mark.parametrize(
    ("conf", "where"),
    [
        ({"max_tokens": 4096, "tokens": 5, "token": 5}, None),
        ({"tokens": "4096"}, None),
        ({"password": 12345678}, "conf.password"),
        ({"pass": 2}, None),
        ({"settings": [{"name": "password", "value": "hunter2"}]}, "conf.settings[0].value"),
        ({"settings": [{"key": "region", "value": "eu"}, {"key": "db.password", "value": "x"}]}, "conf.settings[1].value"),
        ({"settings": [{"name": "day", "value": "2020-01-01"}]}, None),
        ({"credentials": {"user": "a", "value": "b"}}, "conf.credentials.value"),
        ({"db": "postgresql://reader:hunter2@db/sales"}, "conf.db"),
        ({"db": "postgresql://reader@db/sales"}, None),
        ({"db": "postgresql://reader:${PASSWORD}@db/sales"}, None),
        ({"db": "jdbc:postgresql://db/sales?user=reader&password=hunter2"}, "conf.db"),
        ({"db": "jdbc:sqlserver://db:1433;databaseName=sales;user=reader;password=hunter2;encrypt=true"}, "conf.db"),
        ({"db": "jdbc:postgresql://db/sales?user=reader&sslmode=require"}, None),
        ({"db": "host=db password='hunter 2'"}, "conf.db"),
        ({"store": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={RANDOM}=="}, "conf.store"),
        ({"from": "https://a.example/f.csv?X-Amz-Date=1&X-Amz-Signature=00ff"}, "conf.from"),
        ({"from": f"https://a.example/f.csv?key={RANDOM}"}, "conf.from"),
        ({"from": "https://a.example/f.csv?key=2024"}, None),
        ({"from": "https://a.example/3f2a1c9e-5b7d-4e21-9c3a-0d1e2f3a4b5c.csv"}, None),
        ({"tell": "https://hooks.slack.com/services/T0/B0/x"}, "conf.tell"),
        ({"headers": {"X-Any": "Bearer abcdefgh"}}, "conf.headers.X-Any"),
        ({"pem": "-----BEGIN RSA PRIVATE KEY-----\nMII"}, "conf.pem"),
        ({"text": json.dumps({"a": json.dumps({"password": "hunter2"})})}, "conf.text.a.password"),
        ({"text": "{not json"}, None),
        ({"where": "passengers=3 and pass_count=2 and key=5"}, None),
        ({"out": "s3://lake/tokens/day=2020-01-01", "sha256": "5d" * 32, "run": RANDOM}, None),
        ({"data": "/tmp/x", "table": "lake.flights", "days": ["2020-01-01"], "seconds": 4, "note": "the password is lost"}, None),
        ({"long": "y" * 100_000, "pairs": "y=y" * 30_000, "p" * 100_000: "x", "json": "[" * 50_000 + "]" * 50_000}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_where_a_conf_has_one(conf: dict[str, Any], where: str | None) -> None:
    assert secret_in_conf(conf) == where


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.slack.com/services/T0/B0/x",
        "https://HOOKS.slack.com./x",
        "https://acme.webhook.office.com/webhookb2/x",
        "https://prod-12.westus.logic.azure.com:443/workflows/a/triggers/manual/paths/invoke?sp=b&sv=1.0&sig=c",
        "https://discord.com/api/webhooks/1/x",
        "https://api.telegram.org/bot1:x/sendMessage",
        "https://events.pagerduty.com/integration/e93facc04764012d7bfb002500d5d1a6/enqueue",
        "https://chat.acme.example/hooks/8gq3n1x7w9tkzr4m6yfp2bvc5d",
        "https://acme.example/hook/3f2a1c9e-5b7d-4e21-9c3a-0d1e2f3a4b5c",
        "https://acme.example/hook?token=x",
        "https://acme.example/hook?sig=x",
        f"https://acme.example/hook?key={RANDOM}",
        f"https://acme.example/hook?id={RANDOM}",
    ],
)
def test_a_secret_address(url: str) -> None:
    assert is_secret_address(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org",
        "https://example.org/hook",
        "https://events.pagerduty.com/v2/enqueue",
        "https://events.eu.pagerduty.com/v2/enqueue",
        "http://hooks.internal:8080/ops-alerts-production-2024-europe?team=data&topic=runs",
        "http://127.0.0.1:39871/slow-once?a=b",
        "http://alertmanager.monitoring.svc:9093/api/v2/alerts",
        "https://notslack.com/services",
        "https://example.org/hook?partition_key=day",
    ],
)
def test_an_address_that_everyone_may_know(url: str) -> None:
    assert not is_secret_address(url)
