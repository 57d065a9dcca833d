"""What is released: its licence, its version, its name."""

from __future__ import annotations

import re
import tomllib
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

import tandembus
from tests.house.packages import build_wheel
from tests.house.test_house import our_files

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return ZipFile(build_wheel(tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    return message_from_bytes(wheel.read(f"tandembus-{tandembus.__version__}.dist-info/METADATA"))


def test_fl3_the_wheel_has_its_licence(wheel: ZipFile, metadata: Message) -> None:
    """As an SPDX expression, as the whole text, and with the notice that must travel with it."""
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    folder = f"tandembus-{tandembus.__version__}.dist-info/licenses"
    for name in ("LICENSE", "NOTICE"):
        assert wheel.read(f"{folder}/{name}") == (ROOT / name).read_bytes()
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License\n                           Version 2.0, January 2004" in text
    for number in range(1, 10):
        assert re.search(rf"^   {number}\. [A-Z]", text, re.MULTILINE), number
    assert "END OF TERMS AND CONDITIONS" in text


def test_fl3_the_wheel_says_which_pythons(metadata: Message) -> None:
    prefix = "Programming Language :: Python :: "
    classifiers = metadata.get_all("Classifier") or []
    assert [each[len(prefix) :] for each in classifiers if each.startswith(prefix)] == [*PYTHONS]
    assert metadata["Requires-Python"] == f">={PYTHONS[0]}"


def test_fl3_the_version_is_released() -> None:
    """It has one source, and the changelog has it with a date and the text of its tag."""
    assert "version" in PROJECT["dynamic"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)\n\n([A-Z][^#]+?)\n\n",
        changelog,
        re.MULTILINE,
    )
    assert released
    assert released[0][0] == tandembus.__version__
    assert changelog.index("## [Unreleased]") < changelog.index(f"## [{tandembus.__version__}]")
    assigned = [
        path
        for path in our_files()
        if path.suffix in (".py", ".toml")
        and re.search(r'^(__version__|version) = "', path.read_text("utf-8"), re.MULTILINE)
    ]
    assert [path.relative_to(ROOT).as_posix() for path in assigned] == ["src/tandembus/__init__.py"]


OTHER_NAME = re.compile(
    # `tandem[spark]`, wherever it is; not `x.tandem[…]` or `$tandem[…]`.
    r"(?<![\w.$/-])tandem\[[a-z]"
    # `pip install tandem`, `uv add "tandem>=0.2"`, with options and other packages between.
    r"|\b(?:pip3?|pipx|uv|poetry|conda)\b[^\n|;&]*\b(?:install|add|download)\b[^\n|;&`]*"
    r"[ '\"]tandem(?=['\"\s`.,;:)<>=~!@]|$)(?!\.\w)",
    re.MULTILINE,
)


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("pip install tandem", True),
        ("sudo /opt/x/bin/pip install --upgrade 'tandem[fast]'", True),
        ('uv add "tandem>=0.2"', True),
        ("(`pip install tandem`)", True),
        ('"This needs pyarrow: " "tandem[journal]"', True),
        ("pip install azure-servicebus tandem", True),
        ("pip install 'tandembus[spark]'", False),
        ("pip install . azure-servicebus\ntandem serve data", False),
        ("`pip install tandembus` brings the command `tandem`", False),
        ("/opt/tandem/bin/pip install 'tandembus[fast]' && tandem serve", False),
        ("pip install /opt/tandem/tandembus.whl", False),
    ],
)
def test_fl2_the_pattern_tells_the_names_apart(text: str, is_wrong: bool) -> None:
    """The canary of the next test."""
    assert bool(OTHER_NAME.search(text)) == is_wrong


def test_fl2_nobody_is_told_to_install_another_package() -> None:
    """The name `tandem` on the package index is somebody else's: no document, error or recipe
    installs it."""
    found = []
    for path in our_files():
        if path == Path(__file__).resolve():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in OTHER_NAME.finditer(text)]
    assert not found


def test_fl2_every_extra_that_is_named_exists() -> None:
    """`tandembus[…]` in documents and errors has extras of pyproject.toml only."""
    assert PROJECT["name"] == "tandembus"
    extras = set(PROJECT["optional-dependencies"])
    named: dict[str, str] = {}
    for path in our_files():
        text = path.read_bytes().decode("utf-8", "replace")
        for match in re.finditer(r"tandembus\[([a-z, ]+)\]", text):
            named |= dict.fromkeys(re.split(r", *", match[1]), path.name)
    assert {"spark", "journal", "pairing"} <= set(named)
    assert not {extra: where for extra, where in named.items() if extra not in extras}
