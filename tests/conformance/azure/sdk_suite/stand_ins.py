"""Stands in for the modules that the suite imports and nobody can install: Azure's test tools
(recorder, login) and the clients of its resource manager. Live runs need none of them."""

from __future__ import annotations

import base64
import enum
import functools
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from azure.core.credentials import AccessToken
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.aio._base_handler_async import (
    ServiceBusSharedKeyCredential as AsyncSharedKeyCredential,
)

from tests.conformance.azure.sdk_suite import preparers
from tests.conformance.azure.sdk_suite.target import KEY, KEY_NAME, target


class RecordedTestCase:
    """The suite's test classes derive from it."""

    @staticmethod
    def await_prepared_test(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def run(case: object, **resources: Any) -> Any:
            return preparers.run_test(test, case, resources)

        return run


class AccessRights(enum.StrEnum):
    manage = "Manage"
    send = "Send"
    listen = "Listen"


# --- the login ------------------------------------------------------------------------------------


def get_credential(is_async: bool = False, **_: Any) -> Any:
    """For azure-identity's: SAS tokens, or JSON web tokens signed with the same key."""
    if target().credential == "jwt":
        return AsyncJwtCredential() if is_async else JwtCredential()
    credential = AsyncSharedKeyCredential if is_async else ServiceBusSharedKeyCredential
    return credential(KEY_NAME, KEY)


def make_jwt(lifetime_s: int = 3600) -> AccessToken:
    def encode(part: bytes) -> bytes:
        return base64.urlsafe_b64encode(part).rstrip(b"=")

    now = int(time.time())
    claims = {
        "aud": "https://servicebus.azure.net",
        "iss": "sdk-suite",
        "sub": "sdk-suite",
        "iat": now,
        "nbf": now - 60,
        "exp": now + lifetime_s,
    }
    parts = [{"alg": "HS256", "typ": "JWT"}, claims]
    text = b".".join(encode(json.dumps(part).encode()) for part in parts)
    signature = hmac.new(KEY.encode(), text, hashlib.sha256).digest()
    return AccessToken(f"{text.decode()}.{encode(signature).decode()}", now + lifetime_s)


class JwtCredential:
    def get_token(self, *_: Any, **__: Any) -> AccessToken:
        return make_jwt()

    def close(self) -> None:
        pass

    def __enter__(self) -> JwtCredential:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class AsyncJwtCredential:
    async def get_token(self, *_: Any, **__: Any) -> AccessToken:
        return make_jwt()

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> AsyncJwtCredential:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


# --- the modules ----------------------------------------------------------------------------------


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _as_it_is(test: Callable[..., Any]) -> Callable[..., Any]:
    return test


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = []
    module.__dict__.update(content)
    sys.modules[name] = module
    return module


def install() -> None:
    _module(
        "devtools_testutils",
        AzureMgmtRecordedTestCase=RecordedTestCase,
        AzureRecordedTestCase=RecordedTestCase,
        PowerShellPreparer=preparers.EnvironmentPreparer,
        RandomNameResourceGroupPreparer=preparers.ResourceGroupPreparer,
        CachedResourceGroupPreparer=preparers.ResourceGroupPreparer,
        get_credential=get_credential,
        recorded_by_proxy=_as_it_is,
        set_custom_default_matcher=_nothing,
        set_bodiless_matcher=_nothing,
        add_general_regex_sanitizer=_nothing,
    )
    _module(
        "devtools_testutils.sanitizers",
        add_remove_header_sanitizer=_nothing,
        add_general_regex_sanitizer=_nothing,
        add_oauth_response_sanitizer=_nothing,
    )
    _module("devtools_testutils.aio", recorded_by_proxy_async=_as_it_is)
    sys.modules["servicebus_preparer"] = preparers
    _module("azure.mgmt")
    _module("azure.mgmt.servicebus")
    _module("azure.mgmt.servicebus.models", AccessRights=AccessRights)
