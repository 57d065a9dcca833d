"""Stands in for the suite's `servicebus_preparer`: gives a test the entities that it asks for.

A preparer is a decorator that adds keyword arguments. The suite's own make everything through Azure
Resource Manager and share what is "cached" between tests. These ask the broker's administration
API, and share nothing: a test that failed leaves no messages behind for the next one.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import uuid4

from azure.core.exceptions import AzureError
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient

from tests.conformance.azure.sdk_suite.target import HOST, KEY, KEY_NAME, target

SERVICEBUS_ENDPOINT_SUFFIX: Final = ""
"""A test writes `f"{namespace.name}{SUFFIX}"` for the host."""
_log = logging.getLogger("sdk_suite")

type_of_test = Callable[..., Any]


class Resource:
    """What a test sees of a queue, a topic, a namespace: its name."""

    def __init__(self, name: str) -> None:
        self.name = self.id = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


@functools.cache
def admin() -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient(
        HOST, ServiceBusSharedKeyCredential(KEY_NAME, KEY), retry_total=1
    )


def unique(prefix: str) -> str:
    return f"{prefix or 'suite'}-{uuid4().hex[:10]}"


def is_prepared(test: object) -> bool:
    """Whether it needs a broker."""
    return getattr(test, "is_prepared", False)


def run_test(test: type_of_test, case: object, resources: dict[str, Any]) -> Any:
    """Call it with as much as it takes."""
    parameters = inspect.signature(test).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if not is_prepared(test) and not takes_all:
        resources = {name: value for name, value in resources.items() if name in parameters}
    made = test(case, **resources)
    return asyncio.run(made) if inspect.iscoroutine(made) else made


class Preparer:
    """Adds nothing; what derives from it says what `create` adds, and how `remove` undoes it."""

    def __init__(self, name_prefix: str = "", parameter_name: str = "", **_: Any) -> None:
        self.prefix = name_prefix
        self.parameter = parameter_name

    def create(self, given: dict[str, Any]) -> dict[str, Any]:
        return {}

    def remove(self, resources: dict[str, Any]) -> None:
        pass

    def __call__(self, test: type_of_test) -> type_of_test:
        @functools.wraps(test)
        def prepared(case: object, **given: Any) -> Any:
            resources = given | self.create(given)
            try:
                return run_test(test, case, resources)
            finally:
                try:
                    self.remove(resources)
                except AzureError as error:  # the test may have done it, and its result counts
                    _log.warning("%s: %s", type(self).__name__, error)

        prepared.is_prepared = True  # type: ignore[attr-defined]
        return prepared


class ResourceGroupPreparer(Preparer):
    def create(self, given: dict[str, Any]) -> dict[str, Any]:
        return {self.parameter or "resource_group": Resource("local"), "location": "local"}


class NamespacePreparer(Preparer):
    def create(self, given: dict[str, Any]) -> dict[str, Any]:
        name = self.parameter or "servicebus_namespace"
        return {
            name: Resource(HOST),
            f"{name}_connection_string": target().connection_string(),
            f"{name}_key_name": KEY_NAME,
            f"{name}_primary_key": KEY,
        }


class QueuePreparer(Preparer):
    def __init__(
        self,
        name_prefix: str = "",
        parameter_name: str = "servicebus_queue",
        requires_duplicate_detection: bool = False,
        dead_lettering_on_message_expiration: bool = False,
        requires_session: bool = False,
        enable_partitioning: bool = False,
        lock_duration: str = "PT30S",
        **_: Any,
    ) -> None:
        super().__init__(name_prefix, parameter_name)
        self.settings: dict[str, Any] = {
            "requires_duplicate_detection": requires_duplicate_detection,
            "dead_lettering_on_message_expiration": dead_lettering_on_message_expiration,
            "requires_session": requires_session,
            "enable_partitioning": enable_partitioning,
            "lock_duration": lock_duration,
        }

    def create(self, given: dict[str, Any]) -> dict[str, Any]:
        queue = Resource(unique(self.prefix))
        admin().create_queue(queue.name, **self.settings)
        return {self.parameter: queue}

    def remove(self, resources: dict[str, Any]) -> None:
        admin().delete_queue(resources[self.parameter].name)


class TopicPreparer(Preparer):
    def __init__(
        self, name_prefix: str = "", parameter_name: str = "servicebus_topic", **_: Any
    ) -> None:
        super().__init__(name_prefix, parameter_name)

    def create(self, given: dict[str, Any]) -> dict[str, Any]:
        topic = Resource(unique(self.prefix))
        admin().create_topic(topic.name)
        return {self.parameter: topic}

    def remove(self, resources: dict[str, Any]) -> None:
        admin().delete_topic(resources[self.parameter].name)


class SubscriptionPreparer(Preparer):
    """Goes with its topic."""

    def __init__(
        self,
        name_prefix: str = "",
        parameter_name: str = "servicebus_subscription",
        requires_session: bool = False,
        lock_duration: str = "PT60S",
        **_: Any,
    ) -> None:
        super().__init__(name_prefix, parameter_name)
        self.settings: dict[str, Any] = {
            "requires_session": requires_session,
            "lock_duration": lock_duration,
        }

    def create(self, given: dict[str, Any]) -> dict[str, Any]:
        subscription = Resource(unique(self.prefix))
        topic: Resource = given["servicebus_topic"]
        admin().create_subscription(topic.name, subscription.name, **self.settings)
        return {self.parameter: subscription}


class QueueRulePreparer(Preparer):
    """A key with some of the rights, on the test's queue."""

    def __init__(
        self,
        name_prefix: str = "",
        parameter_name: str = "servicebus_queue_authorization_rule",
        access_rights: Iterable[str] = ("Manage", "Send", "Listen"),
        **_: Any,
    ) -> None:
        super().__init__(name_prefix, parameter_name)
        self.rights = list(access_rights)

    def create(self, given: dict[str, Any]) -> dict[str, Any]:
        queue: str = given["servicebus_queue"].name
        key_name, key = unique("rule"), secrets.token_urlsafe(32)
        rule = AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=self.rights,
            key_name=key_name,
            primary_key=key,
            secondary_key=key,
        )
        description = admin().get_queue(queue)
        description.authorization_rules = [*(description.authorization_rules or ()), rule]
        admin().update_queue(description)
        return self._resources(key_name, key, queue)

    def _resources(self, key_name: str, key: str, queue: str) -> dict[str, Any]:
        text = target().connection_string(key_name, key, queue)
        return {self.parameter: Resource(key_name), f"{self.parameter}_connection_string": text}


class NamespaceRulePreparer(QueueRulePreparer):
    """A key for the namespace: the root's with all rights, else one on the test's queue, because
    the API has none for a namespace."""

    def __init__(
        self,
        name_prefix: str = "",
        parameter_name: str = "servicebus_authorization_rule",
        **kw: Any,
    ) -> None:
        super().__init__(name_prefix, parameter_name, **kw)

    def create(self, given: dict[str, Any]) -> dict[str, Any]:
        if len(self.rights) == 3:
            return self._resources(KEY_NAME, KEY, "")
        return super().create(given)

    def _resources(self, key_name: str, key: str, queue: str) -> dict[str, Any]:
        return super()._resources(key_name, key, "")


class EnvironmentPreparer(Preparer):
    """Stands in for `PowerShellPreparer`: settings of the environment become arguments."""

    def __init__(self, directory: str = "", **defaults: str) -> None:
        super().__init__()
        self.defaults = defaults

    def create(self, given: dict[str, Any]) -> dict[str, Any]:
        known = {
            "servicebus_connection_str": target().connection_string(),
            "servicebus_fully_qualified_namespace": HOST,
            "servicebus_sas_policy": KEY_NAME,
            "servicebus_sas_key": KEY,
        }
        return {name: known.get(name, default) for name, default in self.defaults.items()}

    def __call__(self, test: type_of_test) -> type_of_test:
        """Its arguments have no defaults in the tests: pytest would look for fixtures."""
        prepared = super().__call__(test)
        seen = inspect.signature(test)
        left = [each for name, each in seen.parameters.items() if name not in self.defaults]
        prepared.__signature__ = seen.replace(parameters=left)  # type: ignore[attr-defined]
        return prepared


# The names by which the suite knows them.
ServiceBusResourceGroupPreparer = CachedServiceBusResourceGroupPreparer = ResourceGroupPreparer
ServiceBusNamespacePreparer = CachedServiceBusNamespacePreparer = NamespacePreparer
ServiceBusQueuePreparer = CachedServiceBusQueuePreparer = QueuePreparer
ServiceBusTopicPreparer = CachedServiceBusTopicPreparer = TopicPreparer
ServiceBusSubscriptionPreparer = CachedServiceBusSubscriptionPreparer = SubscriptionPreparer
ServiceBusNamespaceAuthorizationRulePreparer = NamespaceRulePreparer
ServiceBusQueueAuthorizationRulePreparer = QueueRulePreparer
