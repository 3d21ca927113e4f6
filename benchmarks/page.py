"""What the page of a long experiment costs its reader: first curve, redraw, memory; run by hand, with chromium.

    python -m benchmarks.page --database sqlite|postgresql [--replicates 10] [--rounds 1000] [--metrics 50]

Fills a database as benchmarks.snapshot does, serves it, and opens the page in a fresh browser: seconds from the
request until the first curve stands on the canvas; milliseconds of the page's thread for each redraw (bands and
single replicates switched on and off, by the browser's own count of what its tasks took); bytes of the heap after a
collection. Exits 1 on a miss.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from playwright.sync_api import CDPSession, Page, sync_playwright

from app.services.artifacts import FileStore
from app.services.context import Bell, Context
from app.settings import Settings
from app.store.database.engine import Store
from app.store.records.points import MetricNames
from benchmarks.control_plane import fresh, in_process
from benchmarks.snapshot import fill

CHROMIUM = "/usr/bin/chromium"
FIRST_CURVE_SECONDS, REDRAW_SECONDS, HEAP_BYTES = 1.0, 0.050, 100e6


def metric(session: CDPSession, name: str) -> float:
    """Return one of the browser's own measures of the page."""
    read: dict[str, Any] = session.send("Performance.getMetrics")
    return next(float(item["value"]) for item in read["metrics"] if item["name"] == name)


def first_curve(page: Page, address: str) -> float:
    """Open the page; return the seconds until a curve is drawn."""
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_function(
        "() => { const told = document.querySelector('#shown'), canvas = document.querySelector('#chart canvas');"
        " return canvas && told && /^Showing [1-9]/.test(told.textContent); }",
        polling=20,
    )
    return time.perf_counter() - began


def redraws(page: Page, session: CDPSession) -> list[float]:
    """Switch what is drawn; return the seconds that each redraw took of the page's thread."""
    spent = []
    for _ in range(5):
        for box in ("#bands", "#replicates"):
            before = metric(session, "TaskDuration")
            page.evaluate("box => document.querySelector(box).click()", box)
            page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            spent.append(metric(session, "TaskDuration") - before)
    return spent


def main() -> int:
    """Fill, serve, look and print."""
    parser = argparse.ArgumentParser(description="The page of a long experiment in a browser.")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--replicates", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--metrics", type=int, default=50)
    options = parser.parse_args()
    with fresh(options.database) as (url, directory):
        ctx = Context(
            Store(url), Settings(database_url=url, data_dir=directory), FileStore(directory), MetricNames(), Bell()
        )
        experiment_id = fill(ctx, options.replicates, options.rounds, options.metrics)
        ctx.store.close()
        with in_process(url, directory) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            address = f"{server.url}/experiments/{experiment_id}"
            waited = []
            for _ in range(5):
                page = browser.new_context().new_page()  # nothing is cached
                waited.append(first_curve(page, address))
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            page.wait_for_load_state("networkidle")
            drawn = redraws(page, session)
            session.send("HeapProfiler.collectGarbage")
            heap = metric(session, "JSHeapUsedSize")
            browser.close()
    runs = 2 * options.replicates
    print(f"{runs} runs x {options.rounds} rounds x {options.metrics} metrics, {options.database}:")
    print(f"first curve: median {statistics.median(waited):.2f} s, worst {max(waited):.2f} s of {len(waited)}")
    print(f"redraw: median {statistics.median(drawn) * 1e3:.0f} ms, worst {max(drawn) * 1e3:.0f} ms of {len(drawn)}")
    print(f"heap: {heap / 1e6:.1f} MB")
    is_fine = statistics.median(waited) < FIRST_CURVE_SECONDS and statistics.median(drawn) < REDRAW_SECONDS
    return 0 if is_fine and heap < HEAP_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
