"""Counts what a JUnit file of ctest or pytest says, for deploy/test.

The first line is "passed failed skipped"; then one line for each test that did not pass. A Check
program is one test for ctest but many for people: its own summary line is what counts.
"""

import os
import re
import sys
import xml.etree.ElementTree as ElementTree

CHECK_SUMMARY = re.compile(r"Checks: (\d+), Failures: (\d+), Errors: (\d+)")


def check_counts(output, program_failed):
    """Passed and failed of one Check program, or one test where there is no summary."""
    passed = failed = 0
    for checks, failures, errors in CHECK_SUMMARY.findall(output):
        failed += int(failures) + int(errors)
        passed += int(checks) - int(failures) - int(errors)
    # A leak, a crash or a time-out fails the program although no check of it failed.
    if program_failed and failed == 0:
        failed = 1
    if not program_failed and passed == 0:
        passed = 1
    return passed, failed


def first_line(text):
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[0] if lines else ""


def last_line(text):
    return first_line("\n".join(reversed((text or "").splitlines())))


def failure_reason(message, output):
    """pytest gives a message; a Check program names its failures as file:line:F:suite:test."""
    named = [line for line in output.splitlines() if re.search(r":\d+:[FE]:", line)]
    if message or not named:
        return first_line(message) or last_line(output) or "no output"
    more = f" (and {len(named) - 1} more)" if len(named) > 1 else ""
    return named[0].strip().removeprefix(os.getcwd() + "/") + more


def main(path):
    passed = failed = skipped = 0
    notes = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = case.get("name")
        if case.get("classname") not in (None, name):
            name = f"{case.get('classname')}.{name}"
        output = case.findtext("system-out") or ""
        skip = case.find("skipped")
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        # ctest also calls a program it could not start "skipped".
        if skip is not None and case.get("status") == "notrun":
            if not (skip.get("message") or "").startswith("SKIP_"):
                skip, failure = None, skip
        if skip is not None:
            skipped += 1
            # ctest knows only the exit code; the program's last words are the reason.
            notes.append(f"skipped {name}: {last_line(output) or first_line(skip.get('message'))}")
            continue
        good, bad = check_counts(output, failure is not None)
        passed += good
        failed += bad
        if failure is not None:
            notes.append(f"FAILED {name}: {failure_reason(failure.get('message'), output)}")
    print(passed, failed, skipped)
    print("\n".join(notes), end="\n" if notes else "")


if __name__ == "__main__":
    main(sys.argv[1])
