"""The web app against hostile jobs and visitors: nothing executes, nothing crashes, nothing leaks, never a 500."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from triage_logs import NCCL, ending, header, steps
from web_client import LONG_MS, Site, accusing, browser, look, make_job, needs_chromium, serving  # noqa: F401

HOST = "<img src=x onerror=window.__pwned=1>"
LINES = (
    "0: <script>window.__pwned=2</script>",
    "0: </code></li></ol></main><script>window.__pwned=3</script>",
    '1: "><svg onload=window.__pwned=4><iframe srcdoc="<script>parent.__pwned=5</script>">',
    "1: \x1b[2J\x1b]0;owned\x07\x1b[31mred\x1b[0m \x9b31m \u202ereversed\u202c \x00\x08 javascript:window.__pwned=6",
    "0: {{ 7*7 }} {% include '/etc/passwd' %} ${7*7} &lt;b&gt;",
    f"0: NODE_EXIT host={HOST} exit=1",
)
OUTSIDE = "the-secret-outside-of-the-workspace"
LONG = 10_000_000


def evil_job(root: Path, job_id: str = "666") -> Path:
    """A job whose every text is an attack."""
    folder = make_job(root, job_id, "evil")
    log = root / f"{folder.name}.log"
    front = header(2, steps=40).replace("JOB_NODELIST=node[001-002]", f"JOB_NODELIST={HOST},node002")
    hostile = "\n".join(LINES) + "\n"
    text = front + steps(17, 2) + hostile + NCCL.format(rank=1) + ending(1, "<script>window.__pwned=7</script>")
    raw = text.encode() + b"0: invalid \xff\xfe\xc3 utf-8\n0: " + b"A" * LONG + b"\n" + hostile.encode()
    log.write_bytes(raw)
    (folder / "ranks").mkdir()
    (folder / "ranks" / "0.log").write_bytes(hostile.encode() * 50)
    event = {
        "t": 1_780_000_000.0,
        "kind": HOST,
        "stage": HOST,
        "host": HOST,
        "rank": 0,
        "data": {"<b>": HOST, "x": [HOST]},
    }
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n{torn")
    (folder / "verdict.json").write_text(accusing(job_id, HOST, HOST).to_json())
    return folder


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Path]]:
    """A server over a workspace of attacks."""
    place = tmp_path_factory.mktemp("hostile")
    root = place / "outputs"
    root.mkdir()
    (place / "secret.txt").write_text(f"{OUTSIDE}\n")
    evil_job(root)
    make_job(root, "667", "binary")
    (root / "667-JAX-binary.log").write_bytes(random.Random(1).randbytes(400_000) + b"\0" * 100_000)
    torn = make_job(root, "668", "torn") / "prometheus"
    block = torn / "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    (block / "chunks").mkdir(parents=True)
    (block / "meta.json").write_text('{"ulid": "01ARZ3NDEKTSV4')
    (block / "index").write_bytes(b"\xba\xaa\xd7\x00" * 9)
    (torn / "wal").mkdir()
    (torn / "wal" / "00000000").write_bytes(random.Random(2).randbytes(5000))
    linked = make_job(root, "669", "linked") / "ranks"
    linked.mkdir()
    (linked / "0.log").symlink_to(place / "secret.txt")
    out = root / "670-JAX-out"
    out.mkdir()
    (out / "log").symlink_to(place / "secret.txt")
    empty = make_job(root, "672", "empty")
    (root / f"{empty.name}.log").write_bytes(b"")
    with serving(root) as site:
        yield site, root


PAGES = (
    "/",
    "/job/666",
    "/job/666/log",
    "/job/666/log?line=48",
    "/job/666/log?q=script&go=next",
    "/job/666/log?file=ranks/0.log",
    "/job/666/log?rank=1",
    "/job/666/report.html",
    f"/job/666/log?q={quote(LINES[1])}&go=next",
    f"/ask?q={quote('triage 666 ' + LINES[1])}",
    f"/?q={quote(HOST)}",
)


@needs_chromium
@pytest.mark.parametrize("path", PAGES)
def test_nothing_of_a_hostile_job_executes(hostile: tuple[Site, Path], look: Any, path: str) -> None:  # noqa: F811
    site, _ = hostile
    looked = look(site.url + path)
    page = looked.page
    page.wait_for_load_state("load")
    if path == "/job/666":
        page.locator("#verdict[aria-busy=false]").wait_for(state="attached")  # it comes after the first paint
        page.wait_for_load_state("networkidle")
    assert page.evaluate("window.__pwned") is None
    assert page.locator("img[src=x], iframe, svg[onload], main script").count() == 0
    assert page.evaluate(
        "[...document.querySelectorAll('*')].every(e => ![...e.attributes].some(a => /^on/.test(a.name)))"
    )


@needs_chromium
def test_hostile_text_is_there_to_be_read(hostile: tuple[Site, Path], look: Any) -> None:  # noqa: F811
    site, _ = hostile
    page = look(f"{site.url}/job/666/log?q=__pwned=3&go=next").page
    assert (
        page.locator(".is-current")
        .inner_text()
        .endswith("0: </code></li></ol></main><script>window.__pwned=3</script>")
    )
    assert page.locator(".is-current mark").inner_text() == "__pwned=3"
    raw = page.locator(".log-row", has_text="reversed").first.inner_text()
    assert "\x1b" not in raw
    assert "\u202e" not in raw
    assert "red" in raw
    assert "\u2400" in raw  # a NUL, as a sign
    report = look(f"{site.url}/job/666/report.html").page
    assert HOST in report.locator("main").inner_text()


@needs_chromium
def test_a_ten_megabyte_line_is_cut_and_can_be_read_in_parts(hostile: tuple[Site, Path], look: Any) -> None:  # noqa: F811
    site, _ = hostile
    answer = site.get("/job/666/log?q=AAAA&go=next", headers={"accept": "text/html"})
    assert answer.status_code == 200
    assert len(answer.content) < 400_000
    page = look(f"{site.url}/job/666/log?q=AAAA&go=next").page
    page.get_by_role("link", name="Read it in parts").click()
    page.get_by_role("link", name="Next part").click()
    page.wait_for_url("**part=2*")
    assert "part 2 of 306 of this line (10.0 MB)" in page.locator(".is-current").inner_text()
    assert page.locator(".is-current code").inner_text() == "A" * 32768
    page.get_by_role("link", name="Last part").click()
    page.wait_for_url("**part=306*")


HOSTILE_PATHS = (
    "/job/..",
    "/job/../log",
    "/job/..%2f..%2fetc%2fpasswd/log",
    "/job/%2e%2e%2f/report.html",
    "/job/%00/log",
    "/job/669/log",
    "/job/669/log?file=ranks/0.log",
    "/job/670/log",
    "/job/670",
    "/job/666/log?file=../../secret.txt",
    "/job/666/log?file=/etc/passwd",
    "/job/666/log?file=ranks/../../../secret.txt",
    "/job/666/log?file=ranks%5c0.log",
    "/job/666/log?file=%00",
    "/job/666/log?line=99999999999999999999",
    "/job/666/log?line=-1",
    "/job/666/log?line=999999999",
    "/job/666/log?at=999999999999",
    "/job/666/log?at=99999999&go=earlier",
    "/job/666/log?rank=-1",
    "/job/666/log?rank=99999&go=later&at=0",
    "/job/666/log?part=999999999&line=3",
    "/job/666/log?q=%ff%fe&go=next",
    "/job/666/log?go=prev&q=zzz&at=0",
    "/job/666/log/rows?at=0&go=later",
    "/job/666/log/findings",
    f"/job/666/log?q={'x' * 20_000}&go=next",
    f"/job/{'9' * 5000}",
    f"/?{'a=b&' * 8000}",
    "/job/667",
    "/job/667/log",
    "/job/667/log?line=7",
    "/job/667/verdict.json",
    "/job/667/report.html",
    "/job/668",
    "/job/668/verdict.json",
    "/job/668/report.html",
    "/job/668/query?q=up",
    "/job/672",
    "/job/672/log",
    "/job/672/report.html",
    "/compare?a=666&b=667",
    "/compare?a=../x&b=%00",
    "/static/../app.py",
    "/static/%2e%2e/app.py",
    "/static//etc/passwd",
    "//evil.example/",
    "/nothing-here",
)


@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=[p[:48] for p in HOSTILE_PATHS])
def test_a_hostile_address_gets_an_answer_that_is_no_mistake_and_no_leak(hostile: tuple[Site, Path], path: str) -> None:
    site, _ = hostile
    status, body = raw_get(site, path)
    assert 200 <= status < 500
    assert OUTSIDE.encode() not in body
    assert b"root:" not in body
    assert b"create_app" not in body
    assert site.get("/").status_code == 200


def raw_get(site: Site, path: str) -> tuple[int, bytes]:
    """A request as it is written: a client library would tidy the path up."""
    host, port = site.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as wire:
        wire.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/html\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := wire.recv(1 << 16):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("name", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_name_that_points_here_from_elsewhere_is_refused(hostile: tuple[Site, Path], name: str) -> None:
    site, _ = hostile
    answer = site.get("/job/666/log", headers={"host": name})
    assert answer.status_code in (400, 403)
    assert b"__pwned" not in answer.content


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_there_is_nothing_to_write_to(hostile: tuple[Site, Path], method: str) -> None:
    site, _ = hostile
    assert httpx.request(method, f"{site.url}/job/666/log", timeout=60).status_code == 405


def test_the_report_file_is_stricter_with_itself_than_the_app(hostile: tuple[Site, Path]) -> None:
    site, _ = hostile
    answer = site.get("/job/666/report.html?download=1")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "script-src" not in policy
    assert answer.headers["content-disposition"] == 'attachment; filename="trackwalker-666-JAX-evil.html"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/job/666/log", "/job/666/log/rows", "/job/666/log/findings", "/nothing"):
        assert "script-src 'self'" in site.get(path).headers["content-security-policy"]


@needs_chromium
def test_a_job_that_vanishes_under_an_open_page_is_told_in_words(hostile: tuple[Site, Path], browser: Any) -> None:  # noqa: F811
    site, root = hostile
    folder = make_job(root, "671", "vanishing")
    page = browser.new_page()
    page.set_default_timeout(LONG_MS)
    try:
        page.goto(f"{site.url}/job/671/log?follow=1")
        page.get_by_text("Following;").wait_for()
        shutil.rmtree(folder)
        (root / f"{folder.name}.log").unlink()
        page.get_by_text("Following has ended.").wait_for()
        for path in ("/job/671/log", "/job/671", "/job/671/report.html"):
            answer = page.goto(site.url + path)
            assert answer.status in (404, 410)
            assert "671" in page.locator("main").inner_text()
    finally:
        page.close()
    assert site.get("/").status_code == 200


def test_a_job_that_comes_and_goes_while_it_is_read_never_makes_a_mistake(hostile: tuple[Site, Path]) -> None:
    site, root = hostile
    paths = (
        "/job/673/log",
        "/job/673",
        "/job/673/verdict.json",
        "/job/673/report.html",
        "/job/673/log?line=9",
        "/jobs.json",
    )
    seen: dict[str, set[int]] = {path: set() for path in paths}
    over = threading.Event()

    def visit(path: str) -> None:
        while not over.is_set():
            seen[path].add(site.get(path, headers={"accept": "text/html"}).status_code)

    visitors = [threading.Thread(target=visit, args=(path,)) for path in paths]
    for visitor in visitors:
        visitor.start()
    try:
        for _ in range(25):
            folder = make_job(root, "673", "flighty")
            log = root / f"{folder.name}.log"
            os.truncate(log, log.stat().st_size // 2)
            over.wait(0.03)
            shutil.rmtree(folder)
            log.unlink()
            over.wait(0.01)
    finally:
        over.set()
        for visitor in visitors:
            visitor.join(60)
    assert all(status < 500 for statuses in seen.values() for status in statuses), seen
    assert any(status >= 400 for status in seen["/job/673/log"])
    assert site.get("/").status_code == 200
