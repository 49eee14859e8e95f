"""Experiments that ask whether FIRE through fired helps; each module is one command.

Run them from the folder above: `python -m experiments.random_labels --quick`.
"""
