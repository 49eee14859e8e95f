"""fired: restores the plasticity of neural networks.

    import fired
    client = fired.Client()                        # an own daemon, or the one of FIRED_ADDR
    client.reinit(model, optimizer=optimizer)      # between two phases of training

`fired.torch` and `fired.jax` know the frameworks, `fired.callbacks` training loops."""

from ._async import AsyncClient
from ._client import Client
from ._daemon import stop_embedded
from ._library import library_path, option_keys, presets
from ._result import Report, TensorResult
from ._version import VERSION as __version__
from .errors import (
    AuthError,
    BusyError,
    DaemonError,
    DeadlineError,
    FiredError,
    FiredWarning,
    ForkError,
    LibraryError,
    OptimizerError,
    ParameterError,
    ServiceError,
    ShardError,
    TracingError,
    UnavailableError,
    VersionError,
)

__all__ = [
    "Client",
    "AsyncClient",
    "Report",
    "TensorResult",
    "presets",
    "option_keys",
    "library_path",
    "stop_embedded",
    "__version__",
    "FiredError",
    "LibraryError",
    "DaemonError",
    "ServiceError",
    "UnavailableError",
    "BusyError",
    "DeadlineError",
    "AuthError",
    "VersionError",
    "ForkError",
    "ParameterError",
    "ShardError",
    "OptimizerError",
    "TracingError",
    "FiredWarning",
]
