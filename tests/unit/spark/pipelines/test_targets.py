"""The file of targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandembus.errors import ArgumentError
from tandembus.spark.pipelines.targets import LevelTarget, read_targets
from tandembus.workers.options import Target

POOLS = """
[[pool]]
name = "mail"
worker = "mailer:Mailer"
[[pool.level]]
name = "high"
queue = "mail-high"
target = { within_s = 10, percent = 98 }
[[pool.level]]
name = "low"
topic = "mail"
subscription = "low"
"""


def read(text: str, folder: Path) -> tuple[LevelTarget, ...]:
    path = folder / "targets.toml"
    path.write_text(text)
    return read_targets(path)


def test_targets_of_their_own(tmp_path: Path) -> None:
    text = '[[target]]\nentity = "a"\nlevel = 2\nwithin_s = 1.5\n[[target]]\nentity = "b"\nwithin_s = 3\npercent = 50\n'  # noqa: E501
    assert read(text, tmp_path) == (
        LevelTarget("a", 2, Target(1.5, 99)),
        LevelTarget("b", None, Target(3, 50)),
    )


def test_those_of_a_file_of_pools(tmp_path: Path) -> None:
    """The promises that `tandem workers` watches are those that the report judges."""
    assert read(POOLS, tmp_path) == (LevelTarget("mail-high", None, Target(10, 98)),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no \\[\\[target\\]\\]"),
        ("[[target]]\nwithin_s = 1", "'entity' is missing"),
        ("[[target]]\nentity = 'a'\nwithin = 1", "unknown key 'within'"),
        ("[[target]]\nentity = 'a'\nwithin_s = 0", "within_s is above 0"),
        ("[[target]]\nentity = 'a'\nwithin_s = 'soon'", "target 1"),
        ("[[target", "targets.toml"),
    ],
)
def test_mistakes_are_named(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=words):
        read(text, tmp_path)
