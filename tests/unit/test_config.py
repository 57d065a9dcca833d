"""`config`: which source wins, what is refused and in which words, and what a file would change."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tandembus.config import OPTIONS, Declared, Kind, ServerConfig, changes, load
from tandembus.config.emulator import read_namespaces, without_comments
from tandembus.config.entities import SETTINGS, declare, names_of, read_entities
from tandembus.config.values import duration, moment, show_duration, show_moment
from tandembus.errors import ArgumentError
from tandembus.model import NEVER
from tandembus.settings import QueueSettings, SubscriptionSettings

# --- sources --------------------------------------------------------------------------------------


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "tandem.toml"
    file.write_text('folder = "data"\nhost = "file"\nmax_connections = 7\nports = [1]\n')
    environment = {"TANDEM_HOST": "environment", "TANDEM_PORTS": "2, 3"}
    found = load({"host": "flag"}, environment, file)
    config = found.config
    assert (config.host, config.ports, config.max_connections) == ("flag", (2, 3), 7)
    assert config.folder == tmp_path / "data", "a path in a file is relative to the file"
    assert found.sources["host"] == "--host"
    assert found.sources["ports"] == "TANDEM_PORTS"
    assert found.sources["max_connections"] == "tandem.toml"
    assert found.sources["emulator"] == "default"


def test_every_setting_can_be_said_everywhere() -> None:
    """There is one list: none is forgotten in the file, the environment or the flags."""
    known = {option.field for option in OPTIONS}
    assert known == {field.name for field in fields(ServerConfig)} - {"namespaces"}
    assert len({option.flag_name for option in OPTIONS}) == len(OPTIONS)
    page = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
    for option in OPTIONS:
        assert f"`{option.key}`" in page.read_text(encoding="utf-8"), option.key


@pytest.mark.req("C2")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prots = [1]", "there is no setting 'prots'; did you mean 'ports'?"),
        ("[namespaces.a.queues.q]\nlock_durration = 1", "did you mean 'LockDuration'?"),
        ("[namespaces.a]\nhost = ['x']", "did you mean 'hosts'?"),
        ("ports = ['x']", "tandem.toml: ports is a whole number"),
        ("emulator = 1", "tandem.toml: emulator is true or false"),
        ("ports = [70000]", "--port is between 0 and 65535"),
        ("host = 'a'\nhost = 'b'", "tandem.toml: "),
        ("[namespaces.a.queues.q]\nlock_duration = '6m'", "maximum of '5' minutes"),
        ("[namespaces.a.queues.'q!']", "letters, digits"),
        ("[namespaces.a.queues.q]\n[namespaces.a.topics.Q]", "declared twice"),
        ("[namespaces.'a b']", "--namespace has 1 to 50 letters"),
        ("ports = [5672]\n[namespaces.a]\nports = [5672]", "5672 is one of all namespaces"),
        ("[namespaces.a]\n[namespaces.A]", "two namespaces have the name 'a'"),
        (
            "[namespaces.a]\nfolder='x'\n[namespaces.b]\nfolder='x'",
            "two namespaces have the folder",
        ),
        (
            "[namespaces.a]\nhosts=['h']\n[namespaces.b]\nhosts=['H']",
            "two namespaces have the host",
        ),
        (
            "[namespaces.a.topics.t.subscriptions.s.rules.r]\nfiltre = '1=1'",
            "did you mean 'filter'?",
        ),
        (
            "[namespaces.a.topics.t.subscriptions.s.rules.r]\nfilter = {labl = 'x'}",
            "did you mean 'label'?",
        ),
        ("namespaces = 1", "namespaces is a table"),
    ],
)
def test_what_is_wrong_is_told_by_its_name(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tandem.toml"
    file.write_text(f'folder = "data"\n{"" if "ports" in text else "ports = [5672]"}\n{text}')
    with pytest.raises(ArgumentError) as caught:
        load({}, {}, file)
    assert said in str(caught.value)


def test_a_variable_that_is_nearly_one() -> None:
    """It is refused; what belongs to other software is not ours."""
    with pytest.raises(ArgumentError, match="TANDEM_PORT; did you mean TANDEM_PORTS"):
        load({"folder": Path("x")}, {"TANDEM_PORT": "1"})
    load({"folder": Path("x")}, {"TANDEM_CONNECTION_STRING": "x", "TANDEM_COLOUR": "red"})


def test_a_folder_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match="tandem serve FOLDER"):
        load({}, {})
    (tmp_path / "tandem.toml").write_text('folder = "here"')
    assert load({}, {}).config.folder == Path("here"), "the file of this folder is found"
    assert load({}, {"TANDEM_FOLDER": "there"}).config.folder == Path("there")


def test_ports_that_nobody_has_named(tmp_path: Path) -> None:
    """The usual one; the emulator's second one too; none where all namespaces have their own."""
    assert load({"folder": tmp_path}, {}).config.ports == (5672,)
    assert load({"folder": tmp_path, "emulator": True}, {}).config.ports == (5672, 5300)
    file = tmp_path / "tandem.toml"
    file.write_text("[namespaces.a]\nports = [1]\n[namespaces.b]\nports = [2]")
    assert load({"folder": tmp_path}, {}, file).config.ports == ()


@pytest.mark.req("C2")
def test_namespaces_of_a_file(tmp_path: Path) -> None:
    """Each has a folder of its own; one log that is there already is not forgotten."""
    file = tmp_path / "tandem.toml"
    file.write_text("[namespaces.a]\nhosts = ['A.example']\n[namespaces.b]\nfolder = 'x'")
    config = load({"folder": tmp_path / "d"}, {}, file).config
    assert [(each.name, each.folder, each.hosts) for each in config.served] == [
        ("a", tmp_path / "d" / "a", ("a.example",)),
        ("b", tmp_path / "d" / "x", ()),
    ]
    (tmp_path / "d" / "log").mkdir(parents=True)
    with pytest.raises(ArgumentError, match="log of a namespace that no file names"):
        load({"folder": tmp_path / "d"}, {}, file)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"missing\.toml: No such file"):
        load({}, {}, tmp_path / "missing.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArgumentError, match="not a text"):
        load({}, {}, tmp_path / "binary")


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("30s", 30_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("500ms", 500), ("1.5s", 1_500),
        ("PT30S", 30_000), ("P1DT1H", 90_000_000), ("45", 45_000), (45, 45_000), ("never", NEVER),
        ("P10675199DT2H48M5.4775807S", NEVER),
    ],
)  # fmt: skip
def test_durations(text: Any, ms: int) -> None:
    assert duration(text, "x") == ms
    assert duration(show_duration(ms), "x") == ms


@pytest.mark.parametrize("text", ["", "soon", "1x", "-5s", "PT", "P1Y1X", "1h 30m", True, None])
def test_what_is_no_duration(text: Any) -> None:
    with pytest.raises(ArgumentError, match="x is a time"):
        duration(text, "x")


def test_moments() -> None:
    assert moment("10m", 1_000, "x") == 601_000
    assert moment("1970-01-01T00:00:01Z", 0, "x") == 1_000
    assert moment("1970-01-01T01:00:01+01:00", 0, "x") == 1_000
    assert moment(show_moment(1_234), 0, "x") == 1_234
    with pytest.raises(ArgumentError, match="x is a time"):
        moment("tomorrow", 0, "x")


# --- the emulator's file --------------------------------------------------------------------------


def test_json_with_comments() -> None:
    """Comments of both kinds go, and commas before a bracket; what is inside a text stays."""
    text = '{"a": "// no \\" /* no */", /* x */ "b": [1, 2,], // y\n "c": ",]",}'
    assert without_comments(text).replace(" ", "").replace("\n", "") == (
        '{"a":"//no\\"/*no*/","b":[1,2],"c":",]"}'
    )


@pytest.mark.req("C2")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1"),
        ("[]", "a table"),
        ('{"UserConfg": {}}', "did you mean 'UserConfig'?"),
        ('{"UserConfig": {"Namespaces": []}}', "names no namespace"),
        ('{"UserConfig": {"Namespaces": [{}]}}', "Namespaces[0] has no Name"),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "a", "Queue": []}]}}',
            "Namespaces[0]: there is no key 'Queue'; did you mean 'Queues'?",
        ),
        ('{"UserConfig": {"Namespaces": [{"Name": "a", "Queues": [1]}]}}', "Queues[0] is a table"),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "a"}, {"Name": "a"}]}}',
            "two namespaces 'a'",
        ),
    ],
)
def test_a_config_json_that_is_wrong(text: str, said: str) -> None:
    """The place is told, and never "out of memory"."""
    with pytest.raises(ArgumentError) as caught:
        read_namespaces(text, "Config.json")
    assert said in str(caught.value)
    assert "Config.json" in str(caught.value)


def test_what_is_beyond_the_emulator() -> None:
    """Several namespaces, any names, all settings."""
    text = """{"UserConfig": {"Namespaces": [
        {"Name": "one", "Ports": [5673], "Queues": [
            {"Name": "q", "Properties": {"MaxDeliveryCount": 100, "PriorityLevels": 3}}]},
        {"Name": "two", "Hosts": ["two.example"], "Topics": [{"Name": "t"}]}]}}"""
    found = read_namespaces(text, "x")
    assert found["one"]["ports"] == [5673]
    (queue,) = read_entities({"queues": found["one"]["queues"]}, "one")
    assert isinstance(queue.settings, QueueSettings)
    assert queue.settings.max_delivery_count == 100
    assert queue.settings.priority is not None
    (topic,) = read_entities({"topics": found["two"]["topics"]}, "two")
    assert topic.path == "t"


# --- entities -------------------------------------------------------------------------------------


def queue(name: str = "q", **said: object) -> Declared:
    return declare(Kind.QUEUE, name, said)


def test_every_setting_has_a_form() -> None:
    """What is shown of a setting can be read again, and so can what goes over the wire."""
    for kind in Kind:
        plain = declare(kind, "x", {})
        for name in SETTINGS[kind]:
            again = declare(kind, "x", {name: plain.wire(name)})
            assert again.value(name) == plain.value(name)
            if plain.value(name) is not None:
                assert declare(kind, "x", {name: plain.shown(name)}).value(name) == again.value(
                    name
                )


def test_names_are_spelled_in_any_way() -> None:
    for name in ("LockDuration", "lock_duration", "lock-duration", "LOCKDURATION"):
        assert queue(**{name: "5s"}).value("LockDuration") == 5_000
    assert "RateLimit" in names_of(Kind.TOPIC)
    assert "RateLimit" not in names_of(Kind.SUBSCRIPTION)


def test_an_emulators_window() -> None:
    """It takes less than Azure for the history of duplicates: then Azure's least is taken."""
    assert (
        queue(DuplicateDetectionHistoryTimeWindow="PT5S").value(
            "DuplicateDetectionHistoryTimeWindow"
        )
        == 20_000
    )
    with pytest.raises(ArgumentError):
        queue(DuplicateDetectionHistoryTimeWindow="PT4S")


def test_differences() -> None:
    """What is not there is made; what is named and differs is changed; what is not named stays;
    what cannot be changed is said; what is not declared is deleted only when that is asked for."""
    there = [
        queue("same", LockDuration="30s", MaxDeliveryCount=7),
        queue("other", LockDuration="30s"),
        queue("fixed"),
        queue("more"),
    ]
    wanted = [
        queue("SAME", LockDuration="30s"),
        queue("other", LockDuration="40s", RateLimit="5/s"),
        queue("fixed", RequiresSession=True),
        queue("new", MaxDeliveryCount=3),
    ]
    found = changes(there, wanted)
    assert [(each.verb, each.path) for each in found] == [
        ("update", "other"), ("cannot", "fixed"), ("create", "new"),
    ]  # fmt: skip
    assert str(found[0]) == (
        "update queue other\n    LockDuration: 30s → 40s\n    RateLimit: - → 5/s"
    )
    assert str(found[2]) == "create queue new\n    MaxDeliveryCount: 3"
    assert found[0].entity is not None
    assert found[0].entity.settings.max_size_mb == 1024  # type: ignore[union-attr]
    assert [each.path for each in changes(there, wanted, deletes=True)][-1] == "more"
    assert changes(there, there) == []


def test_differences_of_rules() -> None:
    def tree(**rules: object) -> list[Declared]:
        below: dict[str, object] = {"s": {"rules": rules} if rules else {}}
        return list(read_entities({"topics": {"t": {"subscriptions": below}}}, "x"))

    one = tree(a={"filter": "x = 1"}, b={"filter": {"label": "red", "properties": {"n": 1}}})
    two = tree(a={"filter": "x = 2"}, c={"filter": "1=1", "action": "SET y = 1"})
    found = changes(one, two)
    assert [(each.verb, each.path.rpartition("/")[2]) for each in found] == [
        ("update", "a"), ("create", "c"),
    ]  # fmt: skip
    assert "x = 1 → x = 2" in str(found[0])
    assert [each.verb for each in changes(one, two, deletes=True)] == ["update", "create", "delete"]
    assert changes(one, tree()) == [], "rules that are not named stay"
    assert isinstance(one[1].settings, SubscriptionSettings)


def test_a_queue_is_no_topic() -> None:
    with pytest.raises(ArgumentError, match="is a queue, and declared as a topic"):
        changes([queue("x")], [declare(Kind.TOPIC, "x", {})])
