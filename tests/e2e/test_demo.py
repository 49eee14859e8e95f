"""deploy/demo: the training loses its plasticity, and fired brings it back."""

import os
import re
import subprocess

import pytest
from build import BUILD
from daemon import ROOT

LIMIT_S = 900  # some seconds on an idle machine


@pytest.mark.skipif("FIRED_TEST_FULL" not in os.environ, reason="long: FIRED_TEST_FULL=1 runs it")
def test_the_demo_trains_reports_and_is_rescued():
    done = subprocess.run([ROOT / "deploy" / "demo", "--once", "--quick"], capture_output=True,
                          text=True, timeout=LIMIT_S, env=os.environ | {"FIRED_BUILD": str(BUILD)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reinitialised by fired" in done.stdout
    found = re.search(r"after the half: (\d+)% left alone, (\d+)% rescued", done.stdout)
    assert found, done.stdout
    alone, rescued = map(int, found.groups())
    assert rescued > alone, done.stdout
