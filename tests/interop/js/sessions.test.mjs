// Sessions: order, locks, state, next available.

import assert from "node:assert/strict";
import { test } from "node:test";
import { client, left, queue, receive, topic, using } from "./broker.mjs";

const bodies = (messages) => messages.map((message) => message.body);

test("a session's messages come in order, to its holder only", async (t) => {
  const name = await queue(t, { requiresSession: true });
  await using(client, async (client) => {
    const sender = client.createSender(name);
    for (let n = 0; n < 6; n++) {
      await sender.sendMessages({ body: n, sessionId: n % 2 ? "odd" : "even" });
    }
    const even = await client.acceptSession(name, "even");
    assert.equal(even.sessionId, "even");
    assert.ok(even.sessionLockedUntilUtc > new Date());
    const odd = await client.acceptNextSession(name);
    assert.equal(odd.sessionId, "odd");
    await assert.rejects(client.acceptSession(name, "even"), { code: "SessionCannotBeLocked" });
    assert.deepEqual(bodies(await receive(odd, 3)), [1, 3, 5]);
    const got = await receive(even, 3);
    assert.deepEqual(bodies(got), [0, 2, 4]);
    assert.equal(got[0].sessionId, "even");
    await even.abandonMessage(got[0]);
    await even.close();
    // The lock went with the link: somebody else may go on at once, in order.
    const next = await client.acceptSession(name, "even");
    const again = await receive(next, 3);
    assert.deepEqual(bodies(again), [0, 2, 4]);
    assert.deepEqual(again.map((message) => message.deliveryCount), [1, 0, 0]);
    for (const message of again) await next.completeMessage(message);
    assert.deepEqual(await left(next), []);
  });
});

test("session state is kept, replaced and cleared; the lock is renewed", async (t) => {
  const name = await queue(t, { requiresSession: true });
  await using(client, async (client) => {
    const session = await client.acceptSession(name, "empty-but-mine");
    assert.equal(await session.getSessionState(), null);
    await session.setSessionState({ step: 3 });
    const before = session.sessionLockedUntilUtc;
    assert.ok((await session.renewSessionLock()) >= before);
    await session.close();
    const again = await client.acceptSession(name, "empty-but-mine");
    assert.deepEqual(await again.getSessionState(), { step: 3 });
    await again.setSessionState(null);
    assert.equal(await again.getSessionState(), null);
  });
});

test("nobody without a session id sends, nobody without a session receives", async (t) => {
  const name = await queue(t, { requiresSession: true });
  await using(client, async (client) => {
    await assert.rejects(client.createSender(name).sendMessages({ body: 1 }));
    await assert.rejects(client.createReceiver(name).receiveMessages(1));
  });
});

test("next available: the attach is held until a session comes", async (t) => {
  const name = await queue(t, { requiresSession: true });
  await using(client, async (client) => {
    // The SDK asks the broker to wait for as long as its own time-out.
    const waiting = client.acceptNextSession(name);
    await client.createSender(name).sendMessages({ body: "here", sessionId: "late" });
    const session = await waiting;
    assert.equal(session.sessionId, "late");
    assert.deepEqual(bodies(await receive(session, 1)), ["here"]);
  });
});

test("deferred, scheduled and dead messages of a session", async (t) => {
  const name = await queue(t, { requiresSession: true });
  await using(client, async (client) => {
    const sender = client.createSender(name);
    await sender.sendMessages([1, 2].map((body) => ({ body, sessionId: "s" })));
    await sender.scheduleMessages({ body: 3, sessionId: "s" }, new Date(Date.now() + 1_000));
    const session = await client.acceptSession(name, "s");
    const [first, second] = await receive(session, 2);
    await session.deferMessage(first);
    await session.deadLetterMessage(second, { deadLetterReason: "no" });
    const [deferred] = await session.receiveDeferredMessages(first.sequenceNumber);
    assert.equal(deferred.body, 1);
    await session.completeMessage(deferred);
    const [scheduled] = await receive(session, 1);
    assert.equal(scheduled.body, 3);
    await session.completeMessage(scheduled);
    const dead = client.createReceiver(name, { subQueueType: "deadLetter" });
    const [died] = await receive(dead, 1);
    assert.deepEqual([died.body, died.sessionId, died.deadLetterReason], [2, "s", "no"]);
  });
});

test("a handler on a session, and a subscription with sessions", async (t) => {
  const name = await topic(t, { sub: { requiresSession: true } });
  await using(client, async (client) => {
    await client
      .createSender(name)
      .sendMessages([1, 2, 3].map((body) => ({ body, sessionId: "s" })));
    const session = await client.acceptSession(name, "sub", "s");
    const got = [];
    await new Promise((resolve, reject) => {
      session.subscribe({
        processMessage: async (message) => {
          got.push(message.body);
          if (got.length === 3) resolve();
        },
        processError: async (args) => reject(args.error),
      });
    });
    await session.close();
    assert.deepEqual(got, [1, 2, 3]);
  });
});
