"""A real browser on a real server. Debian's chromium: Playwright's own download is not used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tandembus.client import Client
from tandembus.testing import BrokerProcess

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)


expect.set_options(timeout=60_000)  # a busy machine is slow, not wrong


@pytest.fixture(scope="module")  # while it is open, no other test can run an event loop
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium here: `make test-browser` says how to get it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(arguments=["--host", "127.0.0.1", "--emulator"]) as broker:
        yield broker


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.connection_string) as client:
        yield client


@pytest.fixture
def page(browser: Browser, broker: BrokerProcess) -> Iterator[Page]:
    """Signed in. A script's error or a request to another host fails the test."""
    wrongs: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.on("pageerror", lambda error: wrongs.append(str(error)))
    page.on("dialog", lambda dialog: wrongs.append(f"a dialog: {dialog.message}"))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((address(broker), "blob:"))
            else wrongs.append(f"asked {request.url}")
        ),
    )
    page.set_default_timeout(60_000)
    page.goto(address(broker))
    page.fill("input[name=key]", broker.connection_string)
    page.click("button[type=submit]")
    page.wait_for_selector("#figures .card")
    yield page
    context.close()
    assert not wrongs


def address(broker: BrokerProcess) -> str:
    return f"http://127.0.0.1:{broker.port}/$console/"


def pictures() -> Path | None:
    """Where screenshots go, if anybody wants them."""
    wanted = os.environ.get("SCREENSHOTS")
    if not wanted:
        return None
    folder = Path(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
