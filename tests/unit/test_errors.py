"""The error tree: every class tells its condition, its status, and whether to retry."""

from __future__ import annotations

import inspect
import re

import pytest

from tandembus import errors
from tandembus.errors import Refused, StoreError, TandemError

ALL = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, TandemError)
]


@pytest.mark.parametrize("cls", ALL)
def test_each_class_knows_its_answers(cls: type[TandemError]) -> None:
    """Edges only copy these; so they must be there, and be of the right form."""
    assert re.fullmatch(r"(amqp|com\.microsoft):[a-z:-]+", cls.condition)
    assert 400 <= cls.status < 600
    assert isinstance(cls.is_retryable, bool)


@pytest.mark.parametrize("cls", ALL)
def test_each_class_is_in_the_picture(cls: type[TandemError]) -> None:
    """The tree in the module's docstring is complete."""
    assert re.search(rf"\b{cls.__name__}\b", errors.__doc__ or "")


def test_the_picture_has_no_others() -> None:
    """Every class that the docstring names exists."""
    named = set(re.findall(r"\b[A-Z]\w+Error\b", errors.__doc__ or ""))
    assert named <= {cls.__name__ for cls in ALL}


@pytest.mark.parametrize("cls", [cls for cls in ALL if issubclass(cls, Refused)])
def test_a_refusal_is_not_a_store_error(cls: type[Refused]) -> None:
    """What changes nothing and what ends the process are never the same."""
    assert not issubclass(cls, StoreError)


def test_only_passing_troubles_are_retryable() -> None:
    """A client that retries the others would loop for ever."""
    retryable = {cls.__name__ for cls in ALL if cls.is_retryable}
    assert retryable == {
        "ConnectionLostError",
        "OperationTimeoutError",
        "ServerBusyError",
        "SessionCannotBeLockedError",
        "ThrottledError",
    }


def test_texts_are_azures() -> None:
    """The texts that users know, and search for."""
    assert str(errors.EntityNotFoundError("a/B")) == (
        "The messaging entity 'a/B' could not be found."
    )
    assert "Either the lock expired, or the message has already been removed" in str(
        errors.MessageLockLostError()
    )
    assert str(errors.SessionCannotBeLockedError("s")) == (
        "The requested session 's' cannot be accepted. It may be locked by another receiver."
    )
    busy = errors.ServerBusyError("The disk is nearly full.", retry_after_ms=2_500)
    assert str(busy) == "The disk is nearly full. Please wait 2.5 seconds and try again."
    assert busy.retry_after_ms == 2_500


def test_a_corrupt_log_says_where() -> None:
    """Segment and offset are in the text and on the error."""
    error = errors.CorruptLogError("bad checksum", segment="0007.log", offset=4096)
    assert (error.segment, error.offset) == ("0007.log", 4096)
    assert "bad checksum in 0007.log at offset 4096" in str(error)
