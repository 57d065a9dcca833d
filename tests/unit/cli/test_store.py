"""`tandem store` as an operator meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandembus.cli import main
from tandembus.store.files import FileStore


def _filled(folder: Path) -> Path:
    store = FileStore(folder)
    for number in range(20):
        store.append([b"group %d " % number * 50])
    store.close()
    return folder


def _damage(folder: Path) -> None:
    """One flipped bit in the middle of the log."""
    (segment,) = folder.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.find(b"group 7")] ^= 1
    segment.write_bytes(data)


def test_a_sound_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "check", str(_filled(tmp_path / "data"))]) == 0
    printed = capsys.readouterr().out
    assert "20 groups" in printed
    assert "no problem found" in printed


def test_damage_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file and the offset are printed, with what to do, and the exit code says it too."""
    folder = _filled(tmp_path / "data")
    _damage(folder)
    assert main(["store", "check", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert "PROBLEM" in printed
    assert ".log at offset" in printed
    assert main(["store", "check", "--json", str(folder)]) == 1
    assert json.loads(capsys.readouterr().out)["problems"]


def test_repair_keeps_what_was_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --accept-loss a damaged log stays as it is; with it, what was lost is printed."""
    folder = _filled(tmp_path / "data")
    _damage(folder)
    assert main(["store", "repair", str(folder)]) == 1
    capsys.readouterr()
    main(["store", "repair", "--accept-loss", str(folder)])
    assert "done:" in capsys.readouterr().out
    assert main(["store", "check", str(folder)]) == 0


def test_backup_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _filled(tmp_path / "data")
    assert main(["store", "backup", str(tmp_path / "copy"), str(folder)]) == 0
    assert main(["store", "check", str(tmp_path / "copy")]) == 0
    assert "20 groups" in capsys.readouterr().out


def test_errors_are_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback for a folder that is not there, or one that a broker has open."""
    assert main(["store", "check", str(tmp_path / "nowhere")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    folder = _filled(tmp_path / "data")
    store = FileStore(folder)
    try:
        assert main(["store", "check", str(folder)]) == 1
    finally:
        store.close()
    assert capsys.readouterr().err.startswith("tandem: ")
