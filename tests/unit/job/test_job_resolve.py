"""From what a person types to one job, on directories as upstream and its tools leave them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import HEADER, make_job

from trackwalker.errors import JobNotFoundError, NotAJobError
from trackwalker.job.resolve import follow, list_jobs, resolve

NAME = "12345-JAX-llama2-70b"
IDS = ["12345", "local_20260101_120000_ab12", "k8s-20260101-120000-ab12"]


@pytest.mark.parametrize("job_id", IDS)
@pytest.mark.parametrize("link", ["link", "flat", None])
@pytest.mark.parametrize("suffix", [".log", ".out"])
def test_every_way_to_name_a_job(tmp_path: Path, job_id: str, link: str | None, suffix: str) -> None:
    directory, log = make_job(tmp_path, f"{job_id}-JAX-llama3.1-70b", link=link, suffix=suffix)
    make_job(tmp_path, "777-JAX-other")
    names = [job_id, job_id[:-1], directory.name, str(directory), f"{directory}/", str(log)]
    names += [str(directory / "log")] if link else []
    for name in names:
        job = resolve(name, tmp_path)
        assert (job.id, job.dir) == (job_id, directory), name
        assert job.log is not None
        assert job.log.samefile(log), name
        assert job.name == "JAX-llama3.1-70b"


@pytest.mark.parametrize("link", ["link", "flat", None])
def test_log_renamed_by_the_throughput_tagger(tmp_path: Path, link: str | None) -> None:
    directory, log = make_job(tmp_path, NAME, link=link)
    renamed = log.rename(tmp_path / f"{NAME}-FP8-24N-pdbs6-TGS_3293.123.log")  # the link now dangles
    for name in ["12345", str(directory), str(renamed)] + [str(directory / "log")] * (link is not None):
        job = resolve(name, tmp_path)
        assert (job.id, job.log, job.dir) == ("12345", renamed, directory), name


@pytest.mark.parametrize("new", [f"{NAME}-TGS_3293.123", "good-run"])
@pytest.mark.parametrize("link", ["link", "flat"])
def test_renamed_directory(tmp_path: Path, new: str, link: str) -> None:
    directory, log = make_job(tmp_path, NAME, link=link)
    moved = directory.rename(tmp_path / new)
    for given in (moved, moved / "log"):
        job = resolve(str(given), tmp_path)
        assert job.log is not None
        assert (job.log.resolve(), job.dir) == (log.resolve(), moved)
    if new != "good-run":  # the id still joins them
        assert resolve(str(log), tmp_path).dir == moved


def test_log_without_a_directory(tmp_path: Path) -> None:
    log = tmp_path / f"{NAME}.log"
    log.write_text(HEADER)
    for name in ("12345", str(log)):
        job = resolve(name, tmp_path)
        assert (job.id, job.log, job.dir) == ("12345", log, None)
        assert job.events is None
        assert job.database is None


def test_a_log_with_any_name(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(HEADER)
    assert resolve(str(log), tmp_path).dir is None


def test_shared_checkpoint_directories_and_strangers_are_not_jobs(tmp_path: Path) -> None:
    make_job(tmp_path, NAME)
    for other in ("llama2-70b", "my-run", ".artifacts", "99-JAX-died-early"):
        (tmp_path / other).mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "88-JAX-gone.log").symlink_to("nowhere.log")
    assert [j.id for j in list_jobs(tmp_path)] == ["12345"]
    with pytest.raises(NotAJobError, match="checkpoint"):
        resolve(str(tmp_path / "llama2-70b"), tmp_path)


def test_jobs_are_listed_newest_first(tmp_path: Path) -> None:
    for age, name in enumerate(["5-JAX-a", "9-JAX-b", "7-JAX-c"]):
        _, log = make_job(tmp_path, name)
        os.utime(log, (1000 - age, 1000 - age))
    assert [j.id for j in list_jobs(tmp_path)] == ["5", "9", "7"]


def test_exact_id_beats_prefix_and_a_prefix_must_be_unique(tmp_path: Path) -> None:
    for name in ("12-JAX-a", "123-JAX-b", "124-JAX-c"):
        make_job(tmp_path, name)
    assert resolve("12", tmp_path).id == "12"
    with pytest.raises(JobNotFoundError, match=r"'1' could be 3 jobs.*12"):
        resolve("1", tmp_path)


def test_a_directory_without_a_log_says_so(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    for name in ("12345", str(tmp_path / NAME)):
        with pytest.raises(NotAJobError, match=f"{NAME} has no log") as caught:
            resolve(name, tmp_path)
        assert "\n" not in str(caught.value)


def test_a_flattened_link_to_nothing_is_not_a_log(tmp_path: Path) -> None:
    directory, log = make_job(tmp_path, NAME, link="flat")
    log.unlink()
    with pytest.raises(NotAJobError, match="has no log"):
        resolve(str(directory), tmp_path)


def test_a_workspace_given_as_a_directory(tmp_path: Path) -> None:
    inner = tmp_path / "outputs"
    directory, _ = make_job(inner, NAME)
    for given in (inner, tmp_path):
        assert resolve(str(given), tmp_path / "elsewhere").dir == directory
    make_job(inner, "777-JAX-other")
    with pytest.raises(JobNotFoundError, match=r"holds 2 jobs; name one of"):
        resolve(str(inner), tmp_path)


def test_dot_and_dot_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = make_job(tmp_path, NAME)
    (directory / "prometheus").mkdir()
    monkeypatch.chdir(directory / "prometheus")
    assert resolve("..", tmp_path).id == "12345"
    monkeypatch.chdir(directory)
    assert resolve(".", tmp_path).dir == directory


def test_missing_workspace_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobNotFoundError, match=r"workspace .*nowhere does not exist"):
        resolve("12345", tmp_path / "nowhere")


def test_a_near_miss_is_suggested(tmp_path: Path) -> None:
    make_job(tmp_path, NAME)
    with pytest.raises(JobNotFoundError, match="did you mean 12345"):
        resolve("12346", tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "12*45",
        "1234?",
        "[1]2345",
        "a**b",
        "**",
        "*",
        "x" * 300,
        "x/" + "y" * 300,
        "~nobody-here/x",
        "~nobody-here",
        "a\x00b",
        "/",
        "no/such.log",
        "gone.log",
        " ",
    ],
)
def test_odd_names_are_one_clear_error(tmp_path: Path, name: str) -> None:
    make_job(tmp_path, NAME)
    (tmp_path / "12945-JAX-logless").mkdir()
    with pytest.raises((JobNotFoundError, NotAJobError)) as caught:
        resolve(name, tmp_path)
    assert "\n" not in str(caught.value)
    assert "12945" not in str(caught.value)  # a pattern must not stumble over another job


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    long = tmp_path / "long"
    long.write_text("a real log of one line, " + "x" * 600)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert follow(loop) is None or not follow(loop).is_file()  # type: ignore[union-attr]
    assert follow(long) == long
    assert follow(folder) == folder
    assert follow(tmp_path / "absent") is None


def test_a_looping_log_link_falls_back_to_the_sibling(tmp_path: Path) -> None:
    directory, log = make_job(tmp_path, NAME, link=None)
    (directory / "log").symlink_to("log")
    assert resolve(str(directory), tmp_path).log == log


def test_a_job_that_died_before_its_log_is_known_by_what_the_submitting_side_said(tmp_path: Path) -> None:
    job = tmp_path / "outputs" / "77-JAX-toy"
    job.mkdir(parents=True)
    with pytest.raises(NotAJobError, match="has no log"):
        resolve(str(job), tmp_path)
    (job / "submit.err").write_text("[ERROR] Job 77 died in prolog before writing any log: FAILED\n")
    assert resolve(str(job), tmp_path).log == job / "submit.err"
