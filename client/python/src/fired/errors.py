"""What can go wrong, each with the parameter it is about and what to do."""

from __future__ import annotations

__all__ = [
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


class FiredError(RuntimeError):
    """Every error of the package. `parameter` is the tensor it is about, or None."""

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class LibraryError(FiredError):
    """libfire.so is not to be found, or is not the one this package was made for."""


class DaemonError(FiredError):
    """The embedded daemon could not be found or started."""


class ServiceError(FiredError):
    """The daemon did not do its work although the request was good. `on_error` decides about
    these; `code` is the gRPC status code, 0 when there was none."""

    def __init__(self, message: str, *, parameter: str | None = None, code: int = 0) -> None:
        super().__init__(message, parameter=parameter)
        self.code = code


class UnavailableError(ServiceError):
    """Nobody answers at the address, the daemon is going down, or it lost its device."""


class BusyError(ServiceError):
    """The daemon has no room now."""


class DeadlineError(ServiceError):
    """The answer did not come before the deadline."""


class AuthError(ServiceError):
    """The daemon does not know the caller, or does not allow the call."""


class VersionError(ServiceError):
    """The daemon is older than this package and does not know the call."""


class ForkError(ServiceError):
    """This process was forked while the client was busy in its parent."""


class ParameterError(FiredError, ValueError):
    """A parameter that cannot be projected as asked: the message says which, why and what to do."""


class ShardError(ParameterError):
    """A local shard in the place of a whole matrix: projecting shards separately is wrong."""


class OptimizerError(ParameterError):
    """The optimizer does not own the parameter, or keeps state of a kind that is not known."""


class TracingError(FiredError):
    """The call stands inside a function that is being traced or compiled."""


class FiredWarning(UserWarning):
    """Something was skipped or done in another place than asked."""
