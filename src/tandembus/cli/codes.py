"""Exit codes, for scripts; docs/cli.md has them, too."""

from __future__ import annotations

from typing import Final

from tandembus.errors import (
    ArgumentError,
    ConnectionLostError,
    EntityNotFoundError,
    MessageNotFoundError,
    OperationTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)

WELL: Final = 0
PROBLEM: Final = 1
"""A problem was found, or the broker refused; it is printed."""
USAGE: Final = 2
"""The command, the configuration or a value is wrong."""
MISSED: Final = 3
"""A target was missed (`tandem workers`)."""
NOT_FOUND: Final = 4
UNAUTHORIZED: Final = 5
UNREACHABLE: Final = 6
"""The broker does not answer, or is too busy: to try again may help."""
NOTHING: Final = 7
"""There was nothing to receive."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

MEANINGS: Final = {
    WELL: "all well",
    PROBLEM: "a problem was found, or the broker refused",
    USAGE: "the command, the configuration or a value is wrong",
    MISSED: "a target was missed (workers)",
    NOT_FOUND: "there is no such entity or message",
    UNAUTHORIZED: "the key does not allow it",
    UNREACHABLE: "the broker does not answer or is busy; to try again may help",
    NOTHING: "there was nothing to receive",
    INTERRUPTED: "Ctrl-C",
}


def code_of(error: Exception) -> int:
    match error:
        case EntityNotFoundError() | MessageNotFoundError():
            return NOT_FOUND
        case UnauthorizedError():
            return UNAUTHORIZED
        case ConnectionLostError() | ServerBusyError() | OperationTimeoutError():
            return UNREACHABLE
        case ArgumentError():
            return USAGE
    return PROBLEM
