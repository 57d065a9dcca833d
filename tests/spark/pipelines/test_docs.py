"""The commands and the program of docs/pipelines.md, run in their order as they stand there."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandembus.cli import main
from tandembus.client import Client, OutgoingMessage
from tandembus.testing import LocalBroker
from tests.house.test_docs import commands_of

pytestmark = [
    pytest.mark.long,  # `make test-spark`
    pytest.mark.xdist_group("spark"),
]

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "pipelines.md").read_text(encoding="utf-8")
POOLS = '[[pool]]\nname = "p"\nworker = "tandembus.workers:Worker"\n[[pool.level]]\nname = "a"\nqueue = "orders"\n'  # noqa: E501


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_commands_are_understood() -> None:
    """Each as it stands there; `make test-docs` and the test below run them."""
    from tandembus.cli import parser

    for words in commands_of(PAGE):
        if words[0] == "tandem":
            plain = words[1 : words.index(">")] if ">" in words else words[1:]
            assert parser(plain).parse_args(plain).run


@pytest.mark.long
def test_the_page(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", "prices"]) == 0
    Path("prices.toml").write_text(capsys.readouterr().out)
    Path("targets.toml").write_text(blocks("toml")[0])
    Path("pools.toml").write_text(POOLS)
    commands = [words for words in commands_of(PAGE) if words[0] == "tandem"]
    of_journal = [
        words for words in commands if words[3:4] not in (["capture"], ["replay"], ["syphon"])
    ]
    with LocalBroker.start(tmp_path / "data") as broker:
        for queue in ("orders", "orders-again", "shop/x-servicebus-transfer/0"):
            broker.create_queue(queue)
        with Client(broker.connection_string) as client:
            with client.sender("orders") as sender:
                sender.send_all(OutgoingMessage(str(at)) for at in range(20)).check()
            with client.receiver("orders") as receiver:
                receiver.complete(receiver.receive(5))
        monkeypatch.setenv("TANDEM_CONNECTION_STRING", broker.connection_string)
        for words in commands:
            if words in of_journal:
                continue
            if words[3] == "syphon":
                words = [*words[:4], "--primary", broker.connection_string, "--secondary",
                         broker.connection_string, "--queues", "1", "--name", "shop"]  # fmt: skip
            assert main(words[1:]) == 0, shlex.join(words)
        with Client(broker.connection_string) as client:
            assert len(list(client.browse_all("orders-again"))) == 15
    for words in of_journal:
        assert main(words[1:][: words.index(">") - 1 if ">" in words else None]) == 0, words
    assert Path("report/report.html").stat().st_size > 1_000_000
    (program,) = blocks("python")
    # The JVM of the tests was started in another folder.
    program = program.replace('["journal"]', f"[{str(tmp_path / 'journal')!r}]")
    capsys.readouterr()
    runpy.run_path(_written(tmp_path / "program.py", program))  # in the session of the tests
    assert "orders" in capsys.readouterr().out


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
