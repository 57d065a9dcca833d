// Where the broker is, and ways to it. The addresses come from tests/interop/nodejs.py.

import { randomUUID } from "node:crypto";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";
import Long from "long";
import WebSocket from "ws";

const PLAIN = needed("TANDEM_PLAIN");
const TLS = needed("TANDEM_TLS");

// A test that waits for the SDK's own retries (3 × 30 s) tells less than one that fails.
const retryOptions = { maxRetries: 0, timeoutInMs: 20_000 };

/** Every road that the SDK knows: the name and a client on it. */
export const ROADS = {
  "plain TCP": () => new ServiceBusClient(PLAIN, { retryOptions }),
  TLS: () => new ServiceBusClient(TLS, { retryOptions }),
  "WebSocket over TLS": () =>
    new ServiceBusClient(TLS, { retryOptions, webSocketOptions: { webSocket: WebSocket } }),
};

export const client = () => ROADS["plain TCP"]();

export const administration = () => new ServiceBusAdministrationClient(TLS);

/** A name that no other test has. */
export const fresh = (kind) => `${kind}-${randomUUID().slice(0, 8)}`;

/** A new queue for a test; goes when the test ends. */
export async function queue(test, options = {}) {
  const name = fresh("queue");
  const admin = administration();
  await admin.createQueue(name, options);
  test.after(() => admin.deleteQueue(name));
  return name;
}

/** A new topic with one subscription for each name, and their options. */
export async function topic(test, subscriptions) {
  const name = fresh("topic");
  const admin = administration();
  await admin.createTopic(name);
  test.after(() => admin.deleteTopic(name));
  for (const [subscription, options] of Object.entries(subscriptions)) {
    await admin.createSubscription(name, subscription, options);
  }
  return name;
}

/** Run `work` with a client that is closed afterwards. */
export async function using(open, work) {
  const opened = open();
  try {
    return await work(opened);
  } finally {
    await opened.close();
  }
}

/** Receive until `count` messages are there: one call of the SDK may return fewer. */
export async function receive(receiver, count, maxWaitTimeInMs = 10_000) {
  const messages = [];
  while (messages.length < count) {
    const some = await receiver.receiveMessages(count - messages.length, { maxWaitTimeInMs });
    if (some.length === 0) break;
    messages.push(...some);
  }
  return messages;
}

/** What is there, and nothing waited for. */
export const left = (receiver) => receiver.peekMessages(100, { fromSequenceNumber: Long.ONE });

export async function collect(iterator) {
  const all = [];
  for await (const one of iterator) all.push(one);
  return all;
}

function needed(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run \`make test-js\``);
  return value;
}
