"""What each of the SDK's samples needs around it, and what it must have done to count as run.

Sync and async samples are twins: one line here is for both, unless one has a line of its own. A
sample that is not named here fails the run, so that a new release of the SDK cannot bring one that
nobody looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Plan:
    prints: Mapping[str, int] = field(default_factory=dict)
    """Regular expressions, and how often each must be found in what it prints."""
    seed: int = 0
    """Messages that wait in its queue and its subscription before it starts."""
    leaves: int | None = None
    """Active messages in its queue and subscription together, when it is over."""
    lock_duration: str = "PT1M"
    has_sessions: bool = False
    """Its subscription has sessions, and some of them are there."""
    is_endless: bool = False
    """It receives for ever: it is stopped when it has printed all it must."""
    needs_proxy: bool = False
    not_run: str = ""
    """Why it cannot run."""
    is_quick: bool = False
    """Among those that every `make test` runs."""


PLANS: Final[Mapping[str, Plan]] = {
    "authenticate_client_connstr": Plan(),
    "authenticate_using_azure_named_key_credential": Plan(leaves=1),
    "authenticate_using_azure_sas_credential": Plan(leaves=1),
    "auto_lock_renew": Plan(
        # It says itself that the lock must be shorter than 40 s for its last part.
        lock_duration="PT30S",
        prints={
            r"Complete messages\.": 2,
            r"Intentionally failed to renew lock": 1,
            r"Lock renew failure demonstration complete\.": 1,
        },
    ),
    "client_identity_authentication": Plan(prints={r"Send message is done\.": 1}, leaves=1),
    "connection_to_custom_endpoint_address": Plan(
        not_run="its endpoint and CA file are placeholders in the text: nobody runs it unmodified"
    ),
    "deadletter_messages_and_correct": Plan(
        prints={r"Message delivery_count: \d": 10, r"Received fixed message: ": 5}, leaves=0
    ),
    "failure_and_recovery": Plan(prints={r"^Data \d$": 10}, leaves=0, is_endless=True),
    "generate_sas_token_and_authenticate_client": Plan(),
    "list_sessions": Plan(
        has_sessions=True,
        prints={
            r"^Queue session: ": 2,
            r"^Subscription session: ": 2,
            r"^Recently updated queue session: ": 1,
        },
    ),
    "mgmt_queue": Plan(
        prints={r"Queue \S+ is created\.": 1, r"Queue \S+ is deleted\.": 1}, is_quick=True
    ),
    "mgmt_rule": Plan(prints={r"Rule \S+ is created\.": 2, r"Rule \S+ is deleted\.": 2}),
    "mgmt_subscription": Plan(
        prints={r"Subscription \S+ is created\.": 1, r"Subscription \S+ is deleted\.": 1}
    ),
    "mgmt_topic": Plan(prints={r"Topic \S+ is created\.": 1, r"Topic \S+ is deleted\.": 1}),
    "proxy": Plan(prints={r"Send message is done\.": 1}, leaves=1, needs_proxy=True),
    "proxy_async": Plan(
        not_run="7.15.0 gives aiohttp the proxy's address without `http://`: it fails before it "
        "has connected to anything"
    ),
    "receive_deadlettered_messages": Plan(prints={r"^Message to be deadlettered$": 20}, leaves=0),
    "receive_deferred_message_queue": Plan(
        prints={r"^Completing deferred msg: ": 10}, leaves=0, is_quick=True
    ),
    "receive_iterator_queue": Plan(seed=5, prints={r"^seeded \d$": 5}, leaves=0, is_endless=True),
    "receive_peek": Plan(seed=3, prints={r"^seeded \d$": 2}, leaves=3),
    "receive_queue": Plan(seed=5, prints={r"^seeded \d$": 5}, leaves=0),
    "receive_subscription": Plan(seed=5, prints={r"^seeded \d$": 5}, leaves=0),
    "sample_code_servicebus": Plan(prints={r"^Hello World$": 3, r"^msg$": 1}),
    "schedule_messages_and_cancellation": Plan(
        prints={r"All scheduled messages are cancelled\.": 1}, leaves=0, is_quick=True
    ),
    "schedule_topic_messages_and_cancellation": Plan(
        prints={r"All scheduled messages are cancelled\.": 1}, leaves=0
    ),
    "send_and_receive_amqp_annotated_message": Plan(
        prints={r"Message of (data|sequence|value) body received\.": 3}, leaves=0
    ),
    "send_queue": Plan(prints={r"sent .*message successfully": 3}, leaves=24),
    "send_topic": Plan(prints={r"sent .*message successfully": 3}, leaves=24),
    "session_pool_receive": Plan(
        prints={r"^Message: Sample message no\. 19$": 5, r"If timeout occurs": 5}, leaves=0
    ),
    "session_send_receive": Plan(
        prints={r"Session state: .*START": 1, r"Session state: .*END": 1}, leaves=11, is_quick=True
    ),
    "topic_subscription_with_rule_operations": Plan(
        prints={
            r"'9' Messages From": 1,
            r"'3' Messages From": 2,
            r"'1' Messages From": 1,
            r"Color Property = BlueProcessed": 3,
        }
    ),
}
