"""How deploy/test counts: Check programs by their own summary, what ran again by its outcome."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "deploy" / "junit_count.py"
SUMMARY = "90%: Checks: 7, Failures: 0, Errors: 0"

CASES = {
    "passes": f'<testcase name="a"><system-out>{SUMMARY}</system-out></testcase>',
    "cannot": f'<testcase name="a"><system-out>skipped: no AMX\nskipped: no AMX\n{SUMMARY}'
              '</system-out></testcase>',
    "fails": '<testcase name="a"><failure message="slow"/></testcase>',
    "skips": '<testcase name="a"><skipped message="no GPU"/></testcase>',
}


def count(tmp_path, first, second=None):
    files = []
    for number, kind in enumerate((first, second)):
        if kind:
            files.append(tmp_path / f"{number}.xml")
            files[-1].write_text(f"<testsuite>{CASES[kind]}</testsuite>")
    command = [sys.executable, SCRIPT, *files]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_check_program_counts_by_its_summary(tmp_path):
    assert count(tmp_path, "passes") == ["7 0 0"]


def test_checks_that_could_not_run_are_skipped(tmp_path):
    assert count(tmp_path, "cannot") == ["5 0 2", "skipped a: 2 checks: no AMX"]


def test_a_failure_is_named(tmp_path):
    assert count(tmp_path, "fails") == ["0 1 0", "FAILED a: slow"]


def test_a_skipped_test_says_why(tmp_path):
    assert count(tmp_path, "skips") == ["0 0 1", "skipped a: no GPU"]


def test_what_passes_only_the_second_time_passes_and_is_named(tmp_path):
    note = "passed only when run again, alone: a: slow"
    assert count(tmp_path, "fails", "passes") == ["7 0 0", note]


def test_what_fails_twice_fails_once(tmp_path):
    assert count(tmp_path, "fails", "fails") == ["0 1 0", "FAILED a: slow"]
