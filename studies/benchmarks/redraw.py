"""How long `diffperf explore` takes to redraw after a changed number, in a Chromium without a window.

    python studies/benchmarks/redraw.py [CHANGES]

Needs chromium, chromedriver and selenium (`pip install diffperf[dev]`). The first answer is waited for until
everything is compiled; then the bandwidth of the memory is changed CHANGES times (15). Prints one JSON
object: the seconds until the address was printed, and the median and the longest of the times from a change
to the drawn answer.
"""

import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

COMMAND = "explore gpt3-175b dgx-a100 --devices 64 --no-browser"
LAYOUT = "tp=8&pp=8"
PAUSE = 1.5  # s between changes: what the page asks for when it is idle is answered by then
_SEARCH = """
const search = document.getElementById("search");
search.value = "hbm bandwidth";
search.dispatchEvent(new Event("input", {bubbles: true}));
"""
_CHANGE = """
delete document.body.dataset.redraw;
const control = document.querySelector('[data-key="system.accelerator.memory.hbm.bandwidth"]');
control.value = arguments[0];
control.dispatchEvent(new Event("change", {bubbles: true}));
"""
_DRAWN = "return document.body.dataset.redraw"  # milliseconds, once the answer is drawn


def browser() -> WebDriver:
    """A Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def redraws(driver: WebDriver, address: str, changes: int) -> list[float]:
    """Seconds from each of some changes to the drawn answer, once the first one is compiled."""
    driver.get(address)
    status = "return document.querySelector('#status').innerText"
    WebDriverWait(driver, 300).until(lambda page: "step time" in page.execute_script(status))
    driver.execute_script(_SEARCH)
    found = []
    for change in range(changes):
        time.sleep(PAUSE)
        driver.execute_script(_CHANGE, f"{1 + change / 20} TB/s")
        milliseconds = WebDriverWait(driver, 30).until(lambda page: page.execute_script(_DRAWN))
        found.append(float(milliseconds) / 1e3)
    return found


def main() -> None:
    """Starts the page and the browser, and measures."""
    changes = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    begun = time.perf_counter()
    command = [sys.executable, "-m", "diffperf", *COMMAND.split()]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
        printed: dict[str, Any] = {"address_printed": time.perf_counter() - begun}
        driver = browser()
        try:
            seconds = redraws(driver, f"{address}&{LAYOUT}", changes)
        finally:
            driver.quit()
    finally:
        server.terminate()
    printed |= {"median": statistics.median(seconds), "longest": max(seconds)}
    print(json.dumps(printed))


if __name__ == "__main__":
    main()
