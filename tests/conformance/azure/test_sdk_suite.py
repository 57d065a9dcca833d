"""A slice of the SDK's own tests: what is quick and covers most of them; `make sdk-suite` has all.

The blocking client without TLS, the asyncio one with it.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.conformance.azure.sdk_suite.download import Sdk, Unavailable, fetch
from tests.conformance.azure.sdk_suite.run import Report, run

WORKERS: Final = 4

BLOCKING: Final = {
    "mgmt_tests/test_mgmt_namespaces.py": "",
    "mgmt_tests/test_mgmt_queues.py": "",
    "mgmt_tests/test_mgmt_rules.py": "",
    "mgmt_tests/test_topic_filter_counts_live.py": "",
    "test_list_sessions.py::TestServiceBusListSessions": """
        list_queue_sessions_with_active_messages list_subscription_sessions_empty
        """,
    "test_message.py::TestServiceBusMessageBackcompat": """
        message_backcompat_peek_lock_databody message_backcompat_receive_and_delete_sequencebody
        message_batch_backcompat
        """,
    "test_queues.py::TestServiceBusQueue": """
        message_inner_amqp_properties queue_by_queue_client_peek_and_receive
        queue_by_servicebus_client_browse_messages_client queue_by_servicebus_client_session_fail
        queue_by_servicebus_client_iter_messages_with_retrieve_deferred_receiver_complete
        queue_complete_message_on_different_receiver queue_message_amqp_over_websocket
        queue_message_batch_large queue_message_connection_closed queue_message_duplicate_detection
        queue_receive_handler_peek_check_uniq_corr_id queue_send_dict_messages_scheduled
        queue_send_large_message_receive queue_send_timeout send_message_no_body state_deferred
        state_scheduled
        """,
    "test_sb_client.py::TestServiceBusClient": """
        client_azure_sas_credential client_credential sb_client_close_spawned_handlers
        sb_client_incorrect_queue_conn_str sb_client_readonly_credentials
        sb_client_writeonly_credentials
        """,
    "test_sessions.py::TestServiceBusSession": """
        session_basic_topic_subscription_send_and_receive
        session_by_servicebus_client_browse_messages_with_receiver
        session_by_servicebus_client_iter_messages_with_retrieve_deferred_client
        session_by_servicebus_client_receive_with_retrieve_deadletter
        session_by_session_client_conn_str_receive_handler_peeklock_abandon
        session_by_session_client_conn_str_receive_handler_with_inactive_session
        session_non_session_send_to_session_queue_should_fail
        """,
    "test_subscriptions.py::TestServiceBusSubscription": """
        subscription_by_subscription_client_conn_str_receive_basic subscription_message_expiry
        """,
    "test_topic.py::TestServiceBusTopics": "topic_by_servicebus_client_send_basic",
}

ASYNCIO: Final = {
    "mgmt_tests/async/test_mgmt_subscriptions_async.py": "",
    "mgmt_tests/async/test_mgmt_topics_async.py": "",
    "test_sb_client.py::TestServiceBusClient": """
        sb_client_with_ssl_context custom_endpoint_connection_verify_exception
        """,
    "async_tests/test_list_sessions_async.py::TestServiceBusListSessionsAsync": """
        list_subscription_sessions_with_active_messages_async
        """,
    "async_tests/test_queues_async.py::TestServiceBusQueueAsync": """
        async_queue_by_queue_client_conn_str_receive_handler_peeklock
        async_queue_by_servicebus_client_iter_messages_with_retrieve_deferred_receiver_complete
        async_queue_message_duplicate_detection async_queue_receive_handler_peek_check_uniq_corr_id
        async_queue_send_large_message_receive queue_async_send_dict_messages_scheduled
        queue_message_amqp_over_websocket
        """,
    "async_tests/test_sb_client_async.py::TestServiceBusClientAsync": """
        custom_endpoint_connection_verify_exception_async sb_client_incorrect_queue_conn_str_async
        sb_client_with_ssl_context_async sb_client_writeonly_credentials_async
        """,
    "async_tests/test_sessions_async.py::TestServiceBusAsyncSession": """
        async_session_basic_topic_subscription_send_and_receive
        async_session_by_servicebus_client_browse_messages_client
        async_session_by_servicebus_client_iter_messages_with_retrieve_deferred_client
        """,
    "async_tests/test_topic_async.py::TestServiceBusTopicsAsync": """
        topic_by_servicebus_client_conn_str_send_basic
        """,
}


def node_ids(chosen: dict[str, str]) -> list[str]:
    """Whole files, and the named tests of a class."""
    return [
        f"{place}::test_{name}" if name else place
        for place, names in chosen.items()
        for name in (names.split() or [""])
    ]


@pytest.fixture(scope="module")
def suite() -> Sdk:
    try:
        return fetch()
    except Unavailable as error:
        pytest.skip(f"azure-servicebus and its tests could not be downloaded: {error}")


def check(report: Report, *, passed: int, skipped: int) -> None:
    print(report)
    for test, result in report.again.items():
        print(f"failed beside others, {result.outcome} alone: {test}")
    assert not report.failures
    assert not report.troubles
    assert report.counts == {"passed": passed, "skipped": skipped}


@pytest.mark.req("C2")
def test_the_blocking_client(suite: Sdk) -> None:
    """Of the SDK's tests of its blocking client, without TLS. Skipped is what the suite skips."""
    report = run(suite, "plain", workers=WORKERS, tests=node_ids(BLOCKING))
    check(report, passed=65, skipped=5)


@pytest.mark.req("C2")
def test_the_asyncio_client(suite: Sdk) -> None:
    """Of the SDK's tests of its asyncio client, over TLS, with all that are about TLS. The login
    is a JSON web token where the tests use that of a directory."""
    report = run(suite, "tls", workers=WORKERS, tests=node_ids(ASYNCIO), credential="jwt")
    check(report, passed=44, skipped=1)
