"""Counts what a JUnit file of ctest or pytest says, for deploy/test.

The first line is "passed failed skipped"; then one line for each test that did not pass. A Check
program is one test for ctest but many for people: its own summary line is what counts. A check that
cannot run prints a line "skipped: reason" and returns; Check has no word for it, so those lines are
counted. A second file holds what was run again because it failed: its outcome counts, and a test
that passed only then is named with what was wrong the first time.
"""

import collections
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

CHECK_SKIPPED = re.compile(r"^skipped: (.+)$", re.MULTILINE)
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


def skipped_checks(output, passed):
    """How many of the passed checks did not run, and a line for each reason."""
    reasons = collections.Counter(CHECK_SKIPPED.findall(output))
    count = min(sum(reasons.values()), passed)
    lines = [f"{number} check{'s' if number > 1 else ''}: {reason}"
             for reason, number in reasons.items()]
    return count, lines if count else []


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


def case_name(case):
    name = case.get("name")
    if case.get("classname") not in (None, name):
        name = f"{case.get('classname')}.{name}"
    return name


def judge(case):
    """Passed, failed, skipped of one test, and the line about it, empty when it passed."""
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
        # ctest knows only the exit code; the program's last words are the reason.
        reason = last_line(output) or first_line(skip.get("message"))
        return 0, 0, 1, f"skipped {case_name(case)}: {reason}"
    good, bad = check_counts(output, failure is not None)
    left_out, lines = skipped_checks(output, good)
    notes = [f"skipped {case_name(case)}: {line}" for line in lines]
    if failure is not None:
        reason = failure_reason(failure.get("message"), output)
        notes.insert(0, f"FAILED {case_name(case)}: {reason}")
    return good - left_out, bad, left_out, "\n".join(notes)


def cases(path):
    # A pytest test whose fixture fails at the end stands twice in its file.
    found = {}
    if path and os.path.exists(path):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            found.setdefault(case_name(case), []).append(judge(case))
    return found


def main(path, second_path=None):
    totals = [0, 0, 0]
    notes = []
    second = cases(second_path)
    if not os.path.exists(path):
        sys.exit(1)
    for name, outcomes in cases(path).items():
        again = second.get(name)
        if again and any(outcome[1] for outcome in outcomes):
            if not any(outcome[1] for outcome in again):
                first = next(outcome[3] for outcome in outcomes if outcome[1])
                first = first_line(first).removeprefix("FAILED ")
                notes.append(f"passed only when run again, alone: {first}")
            outcomes = again
        for outcome in outcomes:
            totals = [total + count for total, count in zip(totals, outcome[:3])]
            if outcome[3]:
                notes.append(outcome[3])
    print(*totals)
    print("\n".join(notes), end="\n" if notes else "")


if __name__ == "__main__":
    main(*sys.argv[1:])
