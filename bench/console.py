"""The console with much to show: `make bench-console`.

10,000 queues and one of a million messages: how long until a page is there, the next one, a search,
a filter; and what a broker loses in throughput while somebody looks at it, by turns in the same
run.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

from playwright.sync_api import Page, sync_playwright

from tandembus.client import Client
from tandembus.testing import BrokerProcess

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is missing: apt install chromium", file=sys.stderr)
        return 2
    with BrokerProcess.start(arguments=["--host", "127.0.0.1", "--emulator"]) as broker:
        with ThreadPoolExecutor(4) as pool:
            names = (f"q-{n:05}" for n in range(options.queues - 2))
            for _ in pool.map(broker.create_queue, names):
                pass
        broker.create_queue("large", MaxSizeInMegabytes=5120)
        broker.create_queue("load", MaxSizeInMegabytes=5120)
        with Client(broker.connection_string) as client, client.sender("large") as sender:
            sender.send_all(repeat(b"x" * 200, options.messages))
        print(f"{options.queues:,} queues, {options.messages:,} messages in one of them")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.set_default_timeout(60_000)
            look(page, broker, options.messages)
            page.goto("about:blank")
            throughput(page, broker, options.seconds, options.rounds)
            browser.close()
    return 0


def look(page: Page, broker: BrokerProcess, messages: int) -> None:
    base = f"http://127.0.0.1:{broker.port}/$console/"
    began = time.perf_counter()
    page.goto(base)
    page.wait_for_selector("input[name=key]")
    say("sign-in page painted", began)
    page.fill("input[name=key]", broker.connection_string)
    page.click("button[type=submit]")
    page.wait_for_selector("#figures .card")

    def measured(what: str, act: str, selector: str) -> None:
        began = time.perf_counter()
        page.evaluate(act)
        page.wait_for_selector(selector)
        say(what, began)

    measured("entities, first page", "location.hash = '#/entities'", "tr[data-key]")
    measured("entities, next page", _click("Next"), "tr[data-key='q-00050']")
    measured("messages, first page", "location.hash = '#/entity/large'", "#messages tr[data-key]")
    measured("messages, next page", _click("Next page"), "#messages tr[data-key='51']")
    deep = messages // 2
    page.fill("input[aria-label='From sequence number']", str(deep))
    measured(f"messages, from {deep:,}", _click("Look"), f"#messages tr[data-key='{deep}']")


def _click(text: str) -> str:
    return f"[...document.querySelectorAll('button')].find(b => b.textContent === '{text}').click()"


def say(what: str, began: float) -> None:
    print(f"{what:<28} {(time.perf_counter() - began) * 1000:8.0f} ms")


def throughput(page: Page, broker: BrokerProcess, seconds: float, rounds: int) -> None:
    """Sent and received in `seconds`, with the overview open and without."""
    base = f"http://127.0.0.1:{broker.port}/$console/#/overview"
    ratios = []
    for turn in range(rounds):
        rates = {}
        for is_open in (True, False) if turn % 2 else (False, True):
            page.goto(base if is_open else "about:blank")
            if is_open:
                page.wait_for_selector("#figures .card")
            rates[is_open] = load(broker, seconds)
        ratios.append(rates[True] / rates[False])
        print(f"closed {rates[False]:8,.0f}/s   open {rates[True]:8,.0f}/s   {ratios[-1]:.2f} ×")
    print(f"open against closed: {statistics.median(ratios):.2f} × (median of {rounds})")


def load(broker: BrokerProcess, seconds: float) -> float:
    until = time.perf_counter() + seconds
    count = 0

    def receive() -> None:
        nonlocal count
        with Client(broker.connection_string) as client, client.receiver("load") as receiver:
            while time.perf_counter() < until:
                got = receiver.receive(500, wait_s=0.2)
                receiver.complete(got)
                count += len(got)

    def send() -> None:
        with Client(broker.connection_string) as client, client.sender("load") as sender:
            while time.perf_counter() < until:
                sender.send_all(repeat(b"x" * 1024, 500))

    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count / seconds


if __name__ == "__main__":
    sys.exit(main())
