"""Lets the tests import their neighbours, wherever pytest was started."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
