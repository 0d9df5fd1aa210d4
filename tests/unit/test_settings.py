"""Secrets in the settings: where they may come from, who gets which, and that none is displayed."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic_settings import SettingsError

from retrofill.system.processes import STACK
from retrofill_core.bus.clients import security
from retrofill_core.bus.service import run_service
from retrofill_core.contract.topics import PLANNER
from retrofill_core.settings import Settings, WrongSetting, read_settings
from retrofill_tools.cli.installation import shown
from retrofill_tools.cli.main import run
from run_starter.executors import processes
from run_starter.executors.command import told

SECRET = "hunter2-hunter2"
SECRET_IN_SPARK = [
    *("spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "spark.hadoop.fs.s3a.session.token"),
    *("spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net", "spark.ssl.keyPassword", "spark.authenticate.secret"),
    *(
        "spark.connect.authenticate.token",
        "spark.hadoop.fs.azure.sas.c.a",
        "spark.x.passwd",
        "spark.kafka.sasl.jaas.config",
    ),
    *("spark.executorEnv.DB_PASS", "spark.yarn.appMasterEnv.PGPASS", "spark.executorEnv.ADMIN_PWD"),
]


def test_a_value_may_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    one.write_text(f"{SECRET}\n")
    many.write_text(json.dumps({"operator": SECRET}))
    monkeypatch.setenv("RETROFILL_KAFKA_PASSWORD_FILE", str(one))
    monkeypatch.setenv("RETROFILL_KAFKA_PASSWORDS_FILE", str(many))
    settings = Settings()
    assert settings.kafka_password is not None
    assert settings.kafka_password.get_secret_value() == SECRET
    assert settings.kafka_passwords["operator"].get_secret_value() == SECRET
    monkeypatch.setenv("RETROFILL_KAFKA_PASSWORD", "nearer")
    assert Settings().kafka_password.get_secret_value() == "nearer"  # type: ignore[union-attr]


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETROFILL_KAFKA_PASSWORD_FILE", "/nowhere")
    with pytest.raises(SettingsError, match="RETROFILL_KAFKA_PASSWORD_FILE cannot be read"):
        Settings()


def test_no_secret_is_shown() -> None:
    settings = Settings.model_validate(
        {
            "postgres_dsn": f"postgresql://u:{SECRET}@h/d",
            "postgres_service_dsns": {"reader": f"postgresql://u:{SECRET}@h/d"},
            "kafka_password": SECRET,
            "kafka_passwords": {"operator": SECRET},
            "kafka_ssl_key_password": SECRET,
            "kafka_config": {"sasl.password": SECRET},
            "code_store_options": json.dumps({"key": SECRET}),
            "webhook_secrets": {"default": ["whsec_aHVudGVyMi1odW50ZXIyLWh1bnRlcjItaHVudGVyMg=="]},
            "spark_remote": f"sc://host:15002/;use_ssl=true;token={SECRET};x-api={SECRET};user_id=me",
            "spark_conf": dict.fromkeys(SECRET_IN_SPARK, SECRET),
            "spark_submit_conf": {
                **dict.fromkeys(SECRET_IN_SPARK, SECRET),
                "spark.driver.extraJavaOptions": f"-Djavax.net.ssl.keyStorePassword={SECRET}",
                "spark.sql.catalog.c.url": f"jdbc:postgresql://u:{SECRET}@h/d",
                "spark.x.url": f"jdbc:sqlserver://h;user=sa;pwd={SECRET}",
                "spark.x.header": f"Bearer {SECRET}",
                "spark.executor.memory": "2g",
            },
        }
    )
    for text in (json.dumps(shown(settings)), repr(settings), str(settings)):
        assert SECRET not in text
        assert "aHVudGVy" not in text
    assert shown(settings)["RETROFILL_KAFKA_CONFIG"] == {"sasl.password": "**********"}
    assert shown(settings)["RETROFILL_SPARK_SUBMIT_CONF"]["spark.executor.memory"] == "2g"
    remote = "sc://host:15002/;use_ssl=true;token=***;x-api=***;user_id=me"
    assert shown(settings)["RETROFILL_SPARK_REMOTE"] == remote


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("[]", ()),
        (' [\n "a+",\n "b"\n]\n', ("a+", "b")),
        ("[a-z]+", ("[a-z]+",)),
        ("[0]", ("[0]",)),
        ("[a-z]+\n\n[0-9]+\n", ("[a-z]+", "[0-9]+")),
    ],
)
def test_patterns_are_a_json_list_of_texts_or_a_line_each(text: str, patterns: tuple[str, ...]) -> None:
    assert Settings.model_validate({"redact": text}).redact == patterns


@pytest.mark.parametrize(
    "text", ['["secret-[a-z]+", ]', '[ "secret", ]', '["a-secret", 12345678]', ' ["a", null]', '["a"']
)
def test_a_json_list_of_patterns_with_a_mistake_is_refused(text: str) -> None:
    """As one regular expression it would mask single letters, and none of the secrets."""
    with pytest.raises(ValidationError, match="JSON of texts only"):
        Settings.model_validate({"redact": text})


@pytest.mark.parametrize(
    "key",
    [
        "acks",
        "request.required.acks",
        "group.id",
        "group.instance.id",
        "transaction.timeout.ms",
        "message.max.bytes",
        "isolation.level",
        "enable.idempotence",
    ],
)
def test_a_property_of_kafka_that_is_ours_is_refused_and_its_value_not_quoted(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROFILL_KAFKA_CONFIG", json.dumps({"linger.ms": "5", key: SECRET}))
    with pytest.raises(WrongSetting, match=f"RETROFILL_KAFKA_CONFIG is wrong: Retrofill sets {key} itself") as refused:
        read_settings()
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("address", ["host:15002", "sc://host:15002/?token=hunter2", "sc://host:15002/;hunter2"])
def test_what_is_no_connect_address_is_refused_and_not_quoted(address: str) -> None:
    """Spark's own error would quote the address, in the middle of a run."""
    with pytest.raises(ValidationError, match="like sc://host:15002") as refused:
        Settings.model_validate({"spark_remote": address})
    assert "hunter2" not in str(refused.value)


def test_an_empty_store_is_not_the_working_directory() -> None:
    with pytest.raises(ValidationError, match=r"it is empty, .*: unset it or name a directory"):
        Settings.model_validate({"code_store": " "})


@pytest.mark.parametrize(
    "address", [f"s3://u:{SECRET}@bucket/x", f"https://host/x?sig={SECRET}", "memory://x", f"cache::s3://{SECRET}"]
)
def test_what_is_no_address_of_a_code_store_is_refused_and_not_quoted(address: str) -> None:
    with pytest.raises(ValidationError, match=r"like s3://bucket/prefix, .*RETROFILL_CODE_STORE_OPTIONS") as refused:
        Settings.model_validate({"code_store": address})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("address", ["/mnt/code", "file:///mnt/code", "s3://b/x", "abfs://c@a.dfs.core.windows.net/x"])
def test_addresses_of_code_stores(address: str) -> None:
    assert shown(Settings.model_validate({"code_store": address}))["RETROFILL_CODE_STORE"] == address


WRONG_DSNS = [
    *("postgresql://svc:hunter2%word@host/db", "postgres//svc:hunter2@host/db", "host=h password=x hunter2"),
    *("postgresql://svc:hunter2%00b@h/db", "host=h password='hunter2", "postgresql://svc:hunter2\udcff@h/db"),
    # These can be parsed, with a part of the password as port or host, which the errors of connections quote.
    *("postgresql://svc:hunter2/word@host/db", "postgresql://svc:pass@hunter2@host/db"),
    "postgresql://svc:12/hunter2@host/db",
]


@pytest.mark.parametrize("dsn", WRONG_DSNS)
@pytest.mark.parametrize("name", ["RETROFILL_POSTGRES_DSN", "RETROFILL_POSTGRES_SERVICE_DSNS"])
def test_a_dsn_that_postgres_cannot_use_is_named_and_not_quoted(
    name: str, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, json.dumps({"reader": dsn}) if name.endswith("DSNS") else dsn)
    with pytest.raises(WrongSetting, match=f"the setting {name} is wrong: .*percent-encode") as refused:
        read_settings()
    assert "hunter2" not in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(ValidationError) as raised:
        Settings()
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_a_wrong_dsn_ends_services_and_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RETROFILL_POSTGRES_DSN", WRONG_DSNS[0])
    assert run_service(PLANNER, lambda _: pytest.fail("it started")) == 1
    monkeypatch.setattr("sys.argv", ["retrofill", "init"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n"), said.err.count("RETROFILL_POSTGRES_DSN")) == ("", 2, 2)
    assert "hunter2" not in said.err


@pytest.mark.parametrize(
    "dsn",
    [
        *("", "dbname=d", "host=h password='two words'", "postgresql://u:a%25b%40c%2Fd@h/d", "host=@abstract"),
        *("postgresql://u:x@h1:1,h2/d", "postgresql:///d?host=/run/postgresql&port=5433", "host=h port=''"),
    ],
)
def test_dsns(dsn: str) -> None:
    assert Settings.model_validate({"postgres_dsn": dsn}).dsn_of("owner") == dsn


@pytest.mark.parametrize("text", [SECRET, f'"{SECRET}"', f'["{SECRET}"]'])
def test_options_of_a_code_store_are_an_object_and_not_quoted(text: str) -> None:
    with pytest.raises(ValidationError, match="the options are a JSON object") as refused:
        Settings.model_validate({"code_store_options": text})
    assert SECRET not in str(refused.value)


def test_each_logs_in_as_itself() -> None:
    settings = Settings.model_validate(
        {
            "kafka_security_protocol": "SASL_SSL",
            "kafka_ssl_ca": "/ca.pem",
            "kafka_passwords": {"operator": "o", "run-starter": "s"},
            "kafka_users": {"operator": "CN=operator"},
            "kafka_password": "all",
        }
    )
    assert security(settings.acting_as("run-starter")) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "retrofill.run-starter",
        "sasl.password": "s",
        "ssl.ca.location": "/ca.pem",
    }
    assert security(settings.acting_as("operator"))["sasl.username"] == "CN=operator"
    planner = security(settings.acting_as("backfill-planner"))
    assert (planner["sasl.username"], planner["sasl.password"]) == ("retrofill.backfill-planner", "all")


def test_mutual_tls_needs_no_password() -> None:
    given = {"kafka_security_protocol": "SSL", "kafka_ssl_certificate": "/c.pem", "kafka_ssl_key": "/k.pem"}
    assert security(Settings.model_validate(given)) == {
        "security.protocol": "SSL",
        "ssl.certificate.location": "/c.pem",
        "ssl.key.location": "/k.pem",
    }


def test_a_driver_inherits_none_of_our_settings() -> None:
    names = [f"RETROFILL_{name}{how}" for name in map(str.upper, Settings.model_fields) for how in ("", "_FILE")]
    ours = {**dict.fromkeys(names, SECRET), "retrofill_kafka_password": SECRET}
    # By the stack's mark, what has lost its parent is found.
    kept = {"PATH": "/bin", STACK: "a1"}
    assert processes.inherited({**kept, **ours}) == kept


def test_a_driver_is_sent_nothing_of_kafka_postgres_or_the_stores() -> None:
    settings = Settings.model_validate(
        {
            "postgres_dsn": f"password={SECRET}",
            "kafka_password": SECRET,
            "kafka_passwords": {"run-starter": SECRET},
            "kafka_config": {"sasl.password": SECRET},
            "kafka_ssl_key": f"/{SECRET}",
            "code_store_options": json.dumps({"key": SECRET}),
            "pagerduty_keys": {"team": "0123456789abcdef0123456789abcdef"},
            "spark_submit_conf": {"spark.executor.memory": "2g"},
        }
    )
    for master in (None, "yarn"):
        sent = told(settings, master)
        assert sent["spark_submit_conf"] == {"spark.executor.memory": "2g"}
        assert not [each for each in (SECRET, "0123456789abcdef", "kafka", "postgres") if each in json.dumps(sent)]
