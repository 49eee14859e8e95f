"""fired for PyTorch: what to project, projecting it, and watching activations."""

from ._reinit import analyze, reinit
from ._selection import Choice, Selection, select
from ._watch import Watch

__all__ = ["select", "reinit", "analyze", "Watch", "Selection", "Choice"]
