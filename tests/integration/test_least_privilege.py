"""A Kafka with authentication and ACLs: everything works with each login's own rights, and
everything else is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._scram import ScramMechanism
from confluent_kafka.cimpl import NewTopic
from pydantic import SecretStr
from tests.support.definitions import alert, daily
from tests.support.installation import Installation, until
from tests.support.servers import Servers

from retrofill_core.bus.clients import admin, producer, reader
from retrofill_core.contract.topics import CONSOLE, OPERATOR, PLANNER, REQUESTER, SERVICES, WATCHER, Topic
from retrofill_core.settings import Settings
from retrofill_tools.admin import access
from retrofill_tools.admin.access import create_users, exactly

pytestmark = pytest.mark.embedded
SECONDS = 20.0
THEIRS = "their.callbacks"
WHO = (*SERVICES, OPERATOR, REQUESTER, CONSOLE)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Servers]:
    """Separate servers whose Kafka has an authorizer."""
    with tempfile.TemporaryDirectory(prefix="retrofill-tests-") as home:
        servers = Servers(Path(home), auth=True)
        try:
            servers.start()
            yield servers
        finally:
            servers.stop()


@pytest.fixture(scope="module")
def house(guarded: Servers) -> Iterator[Installation]:
    """An installation with users and ACLs. Its topics fill up with invalid messages."""
    made = guarded.installation()
    yield made
    made.close()


@pytest.fixture
def clean(guarded: Servers) -> Iterator[Installation]:
    """A separate installation in which services run."""
    made = guarded.installation(callback_topics=[THEIRS])
    try:
        yield made
    finally:
        made.close()


# The rights, written by hand: reads, then writes. "." is the service's
# own cursor topic, "*" those of all services.
MAY = {
    "backfill-planner": (
        "pipelines backfill-requests run-events *",
        "pipeline-events backfill-events backfill-states deadlines callback-requests dead-letters . pipelines"
        " backfill-requests",
    ),
    "run-starter": (
        "backfill-events run-reports *",
        "run-events interval-states deadlines callback-requests dead-letters . run-reports",
    ),
    "deadline-watcher": ("deadlines *", "deadline-missed callback-requests dead-letters ."),
    "callback-runner": ("callback-requests *", "callback-events dead-letters . callback-requests"),
    OPERATOR: (
        " ".join(Topic),
        "pipelines backfill-requests run-events backfill-events run-reports deadlines callback-requests",
    ),
    CONSOLE: (" ".join(Topic), "backfill-requests callback-requests"),
    REQUESTER: (
        "pipeline-events backfill-events run-events backfill-states interval-states deadline-missed callback-events"
        " dead-letters",
        "backfill-requests",
    ),
}


def names(settings: Settings) -> dict[str, str]:
    """Every topic by its short name."""
    prefix = settings.topic_prefix
    cursors = {f"cursors.{name}": service.cursor_topic(prefix) for name, service in SERVICES.items()}
    return {str(topic): f"{prefix}{topic}" for topic in Topic} | cursors


def expected(who: str, which: int) -> set[str]:
    short = {".": [f"cursors.{who}"], "*": [f"cursors.{name}" for name in SERVICES]}
    return {name for given in MAY[who][which].split() for name in short.get(given, [given])}


STARTING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


def refused(do: Callable[[], object]) -> bool:
    """Whether Kafka denied the call, once its coordinators have started. Any other error fails the test."""
    denied: list[bool] = []

    def answered() -> bool:
        try:
            do()
        except KafkaException as e:
            if e.args[0].code() in STARTING:
                return False
            denied.append(_is_refusal(e.args[0]))
        else:
            denied.append(False)
        return True

    until(answered, "Kafka's coordinators have started")
    return denied[0]


def _is_refusal(error: KafkaError) -> bool:
    assert error.code() in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ), error
    return True


def writable(settings: Settings, topics: Collection[str]) -> set[str]:
    """The topics that accept a message. Kafka must have denied all others."""
    answers: dict[str, KafkaError | None] = {}
    client = producer(settings, "test")

    def delivered(error: KafkaError | None, message: Message) -> None:
        answers[message.topic() or ""] = error

    for topic in topics:
        try:
            client.produce(topic, key=b"-", value=b"x", partition=0, on_delivery=delivered)
        except KafkaException as e:
            # Kafka has said so already, to the client's question about its topics.
            answers[topic] = e.args[0]
    assert client.flush(SECONDS) == 0
    assert answers.keys() == set(topics)
    return {topic for topic, error in answers.items() if error is None or not _is_refusal(error)}


def readable(settings: Settings, topics: Collection[str]) -> set[str]:
    """The topics that can be read to their end. Kafka must have denied or hidden all others."""
    groups = access.table(settings)[_who(settings)].groups or ("nobody's",)
    consumer = reader(settings, f"{groups[0].removeprefix(settings.topic_prefix)}-test")
    open_ends = consumer.list_topics(timeout=SECONDS).topics.keys() & set(topics)
    consumer.assign([TopicPartition(topic, 0, 0) for topic in open_ends])
    found: set[str] = set()
    while open_ends:
        message = consumer.poll(SECONDS)
        assert message is not None, f"no answer for {open_ends}"
        error, topic = message.error(), message.topic()
        if error is None or error.retriable():
            continue
        assert topic is not None
        if error.code() == KafkaError._PARTITION_EOF:
            found.add(topic)
        else:
            assert _is_refusal(error)
            if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                # Without any group rights, the group is denied before the topic.
                continue
        open_ends -= {topic}
    consumer.close()
    return found


def _who(settings: Settings) -> str:
    return (settings.kafka_username or "").removeprefix(settings.topic_prefix)


def schedule_check(settings: Settings, group: str) -> None:
    """Request a group's description. Raises ``KafkaException``.

    Not its offsets: librdkafka 2.x crashes if the coordinator answers that it is still starting.
    """
    client = admin(settings, "test")  # must outlive the request
    client.describe_consumer_groups([group], request_timeout=SECONDS)[group].result()


def begin(settings: Settings, transactional_id: str) -> None:
    """Initialize a transactional id, which fences its current holder. Raises ``KafkaException``."""
    producer(settings, "test", **{"transactional.id": transactional_id}).init_transactions(SECONDS)


@pytest.mark.parametrize("who", WHO)
def test_each_reads_and_writes_its_own_topics_and_no_other(house: Installation, who: str) -> None:
    settings = house.settings.acting_as(who)
    topics = names(settings)
    assert writable(settings, topics.values()) == {topics[name] for name in expected(who, 1)}
    assert readable(settings, topics.values()) == {topics[name] for name in expected(who, 0)}


@pytest.mark.parametrize("who", WHO)
def test_each_has_its_own_groups_and_transactional_ids_and_no_other(house: Installation, who: str) -> None:
    settings = house.settings.acting_as(who)
    groups = {name: service.group(settings.topic_prefix) for name, service in SERVICES.items()}
    relays = {name: service.relay_id(settings.topic_prefix) for name, service in SERVICES.items()}
    ids = {name: service.transactional_ids(settings.topic_prefix)[-1] for name, service in SERVICES.items()}
    own = {who} & set(SERVICES)
    assert {name for name, group in groups.items() if not refused(partial(schedule_check, settings, group))} == own
    assert {name for name, group in relays.items() if not refused(partial(schedule_check, settings, group))} == own
    assert {name for name, id in ids.items() if not refused(partial(begin, settings, id))} == own
    assert refused(partial(begin, settings, f"{settings.topic_prefix}made-up"))


@pytest.mark.parametrize("who", WHO)
def test_nobody_but_the_administrator_makes_topics_users_or_rights(house: Installation, who: str) -> None:
    settings = house.settings.acting_as(who)
    client = admin(settings, "test")
    made = client.create_topics([NewTopic(f"{settings.topic_prefix}more", 1, 1)], request_timeout=SECONDS)
    assert all(refused(future.result) for future in made.values())
    granted = client.create_acls(list(access.acls(access.table(settings)[OPERATOR], "x")), request_timeout=SECONDS)
    assert all(refused(future.result) for future in granted.values())
    assert refused(partial(create_users, settings))


def test_a_wrong_password_is_no_login(house: Installation) -> None:
    settings = house.settings.acting_as(REQUESTER).model_copy(update={"kafka_password": SecretStr("wrong")})
    errors: list[KafkaError] = []
    client = producer(settings, "test", error_cb=errors.append)
    until(lambda: client.poll(0.1) is not None and bool(errors), "an error")
    assert errors[0].code() == KafkaError._AUTHENTICATION


def test_each_user_can_log_in_by_both_mechanisms(guarded: Servers, house: Installation) -> None:
    """The embedded broker offers only SCRAM-SHA-512, so what it has stored of the users is compared."""
    settings = guarded.as_admin(house.settings)
    users = [settings.kafka_user(who) for who in WHO]
    client = admin(settings, "test")
    described = client.describe_user_scram_credentials(users, request_timeout=SECONDS)
    assert isinstance(described, dict)
    both = {ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512}
    for user in users:
        assert {each.mechanism for each in described[user].result().scram_credential_infos} == both, user


def test_the_whole_path_works_with_each_as_itself(guarded: Servers, clean: Installation) -> None:
    """From the request to the callback of a missed deadline, with all four services using their own
    logins. No log contains a secret.
    """
    client = admin(guarded.as_admin(clean.settings), "test")
    client.create_topics([NewTopic(THEIRS, 1, 1)], request_timeout=SECONDS)[THEIRS].result()
    for name in ("backfill-planner", "instant-starter", "deadline-watcher", "callback-runner"):
        clean.start(name)
    to_their_topic = {"kind": "topic", "topic": THEIRS}
    clean.apply(daily(deadlines=[alert("late", "BACKFILL_REQUESTED_AT", 0.1, callback=to_their_topic)]))
    id = clean.request("p", "2020-01-01", "2020-01-10")
    assert clean.wait_state(id, "succeeded", "failed") == "succeeded"
    # Events follow their rows with a delay, so the last ones may still be in the outbox.
    until(
        lambda: sum(e.body.get("type") == "RunSucceeded" for e in clean.events(Topic.RUN_EVENTS)) == 10,
        "each run's end is published once",
    )
    clean.wait_event(Topic.CALLBACK_EVENTS, lambda e: e.body.get("type") == "CallbackSucceeded", "the callback")
    settings = clean.settings
    secrets = [*settings.kafka_passwords.values(), *settings.postgres_service_dsns.values()]
    said = "".join(replica.said() for replica in clean.replicas)
    assert said.count('"started"') == 4
    assert [secret for secret in secrets if secret.get_secret_value().split("password=")[-1].split()[0] in said] == []


@pytest.mark.long
def test_a_service_that_may_join_its_group_again_goes_on(guarded: Servers, clean: Installation) -> None:
    """Kafka's client gives up for good on a heartbeat that is refused."""
    settings = guarded.as_admin(clean.settings)
    user = settings.kafka_user(PLANNER.name)
    groups = [
        right
        for right in access.acls(access.table(settings)[PLANNER.name], user)
        if right.restype == ResourceType.GROUP
    ]
    client = admin(settings, "test")
    service = clean.start(PLANNER.name)
    clean.apply(daily())
    for taken in client.delete_acls([exactly(right) for right in groups], request_timeout=SECONDS).values():
        taken.result()
    until(lambda: service.said().count("kafka_consumer_failed") >= 2, "poller and relay were refused", service.said)
    for given in client.create_acls(groups, request_timeout=SECONDS).values():
        given.result()
    id = clean.request("p", "2020-01-01", "2020-01-03")
    clean.wait_event(Topic.BACKFILL_EVENTS, lambda e: e.body.get("backfill_id") == id, "the request is answered")
    assert service.process.poll() is None


@pytest.mark.long
def test_init_again_takes_back_what_is_in_no_row(guarded: Servers, house: Installation) -> None:
    settings = guarded.as_admin(house.settings)
    watcher = house.settings.acting_as(WATCHER.name)
    secret = f"{settings.topic_prefix}{Topic.PIPELINES}"
    more = replace(access.table(settings)[WATCHER.name], writes=frozenset({secret, "theirs"}))
    client = admin(settings, "test")
    user = settings.kafka_user(WATCHER.name)
    client.create_topics([NewTopic("theirs", 1, 1)], request_timeout=SECONDS)["theirs"].result()
    for future in client.create_acls(list(access.acls(more, user)), request_timeout=SECONDS).values():
        future.result()
    until(lambda: secret in writable(watcher, [secret]), "it may write")
    for _ in range(2):
        create_users(settings)
    until(lambda: not writable(watcher, [secret]), "it may not any more")
    # Grants on other people's topics are kept.
    assert writable(watcher, ["theirs"]) == {"theirs"}
