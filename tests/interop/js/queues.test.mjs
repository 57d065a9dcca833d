// A queue as most programs use it, over every road of the SDK.

import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { ROADS, client, left, queue, receive, using } from "./broker.mjs";

const bodies = (messages) => messages.map((message) => message.body);

for (const [road, open] of Object.entries(ROADS)) {
  suite(road, () => {
    test("what was sent comes back as it was, types included", async (t) => {
      const name = await queue(t);
      await using(open, async (client) => {
        const sent = {
          body: { order: 7, lines: ["a", "ü"] },
          messageId: "m-1",
          correlationId: "c-1",
          subject: "label",
          contentType: "application/json",
          to: "there",
          replyTo: "here",
          replyToSessionId: "s-2",
          timeToLive: 60_000,
          applicationProperties: { text: "x", whole: 3, half: 0.5, yes: true, none: null },
        };
        await client.createSender(name).sendMessages(sent);
        const receiver = client.createReceiver(name);
        const [got] = await receive(receiver, 1);
        for (const [key, value] of Object.entries(sent)) assert.deepEqual(got[key], value, key);
        assert.equal(got.sequenceNumber.toNumber(), 1);
        assert.equal(got.deliveryCount, 0);
        assert.equal(got.state, "active");
        assert.ok(got.lockToken);
        assert.ok(got.lockedUntilUtc > got.enqueuedTimeUtc);
        assert.equal(got.expiresAtUtc - got.enqueuedTimeUtc, 60_000);
        await receiver.completeMessage(got);
        assert.deepEqual(await left(receiver), []);
      });
    });

    test("batches, an array of messages and a large message arrive whole and in order", async (t) => {
      const name = await queue(t);
      await using(open, async (client) => {
        const sender = client.createSender(name);
        const batch = await sender.createMessageBatch();
        for (let n = 0; n < 50; n++) assert.ok(batch.tryAddMessage({ body: n }));
        assert.equal(batch.tryAddMessage({ body: "x".repeat(300_000) }), false);
        await sender.sendMessages(batch);
        await sender.sendMessages([{ body: 50 }, { body: 51 }]);
        await sender.sendMessages({ body: Buffer.alloc(200_000, 7) });
        const receiver = client.createReceiver(name, { receiveMode: "receiveAndDelete" });
        const got = await receive(receiver, 53);
        assert.deepEqual(bodies(got.slice(0, 52)), [...Array(52).keys()]);
        assert.deepEqual(got[52].body, Buffer.alloc(200_000, 7));
      });
    });
  });
}

test("complete, abandon, defer, dead-letter, each with what it changes", async (t) => {
  const name = await queue(t);
  await using(client, async (client) => {
    await client
      .createSender(name)
      .sendMessages(["complete", "abandon", "defer", "die"].map((body) => ({ body })));
    const receiver = client.createReceiver(name);
    const [complete, abandon, defer, die] = await receive(receiver, 4);
    await receiver.completeMessage(complete);
    await receiver.deferMessage(defer, { deferred: "yes" });
    await receiver.deadLetterMessage(die, {
      deadLetterReason: "reason",
      deadLetterErrorDescription: "description",
      extra: 5,
    });
    await receiver.abandonMessage(abandon, { tries: 1 });
    const [again] = await receive(receiver, 1);
    assert.equal(again.body, "abandon");
    assert.equal(again.deliveryCount, 1);
    assert.deepEqual(again.applicationProperties, { tries: 1 });
    await receiver.completeMessage(again);

    const [deferred] = await receiver.receiveDeferredMessages(defer.sequenceNumber);
    assert.equal(deferred.body, "defer");
    assert.equal(deferred.state, "deferred");
    assert.deepEqual(deferred.applicationProperties, { deferred: "yes" });
    await receiver.renewMessageLock(deferred);
    await receiver.completeMessage(deferred);
    await assert.rejects(receiver.receiveDeferredMessages(defer.sequenceNumber), {
      code: "MessageNotFound",
    });
    assert.deepEqual(await left(receiver), []);

    const dead = client.createReceiver(name, { subQueueType: "deadLetter" });
    const [died] = await receive(dead, 1);
    assert.equal(died.body, "die");
    assert.equal(died.deadLetterReason, "reason");
    assert.equal(died.deadLetterErrorDescription, "description");
    assert.equal(died.applicationProperties.extra, 5);
    await dead.completeMessage(died);
    assert.deepEqual(await left(dead), []);
  });
});

test("a message that is abandoned too often dies by itself", async (t) => {
  const name = await queue(t, { maxDeliveryCount: 2 });
  await using(client, async (client) => {
    await client.createSender(name).sendMessages({ body: "poison" });
    const receiver = client.createReceiver(name);
    for (const count of [0, 1]) {
      const [got] = await receive(receiver, 1);
      assert.equal(got.deliveryCount, count);
      await receiver.abandonMessage(got);
    }
    const [dead] = await receive(client.createReceiver(name, { subQueueType: "deadLetter" }), 1);
    assert.equal(dead.deadLetterReason, "MaxDeliveryCountExceeded");
  });
});

test("a lock that ran out is lost, and the message comes again", async (t) => {
  const name = await queue(t, { lockDuration: "PT5S" });
  await using(client, async (client) => {
    await client.createSender(name).sendMessages({ body: "slow" });
    const receiver = client.createReceiver(name, { maxAutoLockRenewalDurationInMs: 0 });
    const [late] = await receive(receiver, 1);
    const [again] = await receive(receiver, 1, 15_000);
    assert.equal(again.deliveryCount, 1);
    await assert.rejects(receiver.completeMessage(late), { code: "MessageLockLost" });
    const until = await receiver.renewMessageLock(again);
    assert.ok(until >= again.lockedUntilUtc);
    await receiver.completeMessage(again);
  });
});

test("peek sees all, locks nothing, and goes on where it was", async (t) => {
  const name = await queue(t);
  await using(client, async (client) => {
    await client.createSender(name).sendMessages([1, 2, 3, 4, 5].map((body) => ({ body })));
    const receiver = client.createReceiver(name);
    assert.deepEqual(bodies(await receiver.peekMessages(2)), [1, 2]);
    assert.deepEqual(bodies(await receiver.peekMessages(10)), [3, 4, 5]);
    assert.deepEqual(await receiver.peekMessages(10), []);
    assert.equal((await receive(receiver, 5)).length, 5);
  });
});

test("a scheduled message waits, shows itself to peek, and can be cancelled", async (t) => {
  const name = await queue(t);
  await using(client, async (client) => {
    const sender = client.createSender(name);
    const receiver = client.createReceiver(name);
    const numbers = await sender.scheduleMessages(
      [{ body: "never" }, { body: "neither" }],
      new Date(Date.now() + 3_600_000),
    );
    assert.equal(numbers.length, 2);
    assert.deepEqual((await left(receiver)).map((message) => message.state), [
      "scheduled",
      "scheduled",
    ]);
    await sender.cancelScheduledMessages(numbers);
    assert.deepEqual(await left(receiver), []);
    await assert.rejects(sender.cancelScheduledMessages(numbers), { code: "MessageNotFound" });

    const due = new Date(Date.now() + 2_000);
    await sender.scheduleMessages({ body: "soon" }, due);
    await sender.sendMessages({ body: "too", scheduledEnqueueTimeUtc: due });
    const got = await receive(receiver, 2);
    assert.deepEqual(bodies(got).sort(), ["soon", "too"]);
    for (const message of got) {
      assert.equal(+message.scheduledEnqueueTimeUtc, +due);
      assert.ok(message.enqueuedTimeUtc >= due);
    }
  });
});

test("subscribe: a handler gets every message, and close waits for it", async (t) => {
  const name = await queue(t);
  await using(client, async (client) => {
    await client.createSender(name).sendMessages([...Array(20).keys()].map((body) => ({ body })));
    const receiver = client.createReceiver(name);
    const got = [];
    await new Promise((resolve, reject) => {
      receiver.subscribe(
        {
          processMessage: async (message) => {
            got.push(message.body);
            if (got.length === 20) resolve();
          },
          processError: async (args) => reject(args.error),
        },
        { maxConcurrentCalls: 4 },
      );
    });
    await receiver.close();
    assert.deepEqual(got, [...Array(20).keys()]);
    assert.deepEqual(await left(client.createReceiver(name)), []);
  });
});

test("the iterator receives too, and what it left unread is there for others", async (t) => {
  const name = await queue(t);
  await using(client, async (client) => {
    await client.createSender(name).sendMessages([1, 2, 3].map((body) => ({ body })));
    const receiver = client.createReceiver(name);
    for await (const message of receiver.getMessageIterator()) {
      await receiver.completeMessage(message);
      if (message.body === 2) break;
    }
    await receiver.close();
    const other = client.createReceiver(name);
    assert.deepEqual(bodies(await receive(other, 1)), [3]);
  });
});

test("a duplicate is taken and dropped", async (t) => {
  const name = await queue(t, { requiresDuplicateDetection: true });
  await using(client, async (client) => {
    const sender = client.createSender(name);
    for (const body of [1, 2]) await sender.sendMessages({ body, messageId: "same" });
    const receiver = client.createReceiver(name);
    assert.deepEqual(bodies(await left(receiver)), [1]);
  });
});

test("bodies of every AMQP kind", async (t) => {
  const name = await queue(t);
  await using(client, async (client) => {
    const sender = client.createSender(name);
    await sender.sendMessages({ body: { a: 1 }, bodyType: "value" });
    await sender.sendMessages({ body: [[1, "two"], [3]], bodyType: "sequence" });
    await sender.sendMessages({ body: Buffer.from("raw"), bodyType: "data", header: { priority: 7 } });
    const got = await receive(client.createReceiver(name), 3);
    assert.deepEqual(
      got.map(({ _rawAmqpMessage: raw }) => raw.bodyType),
      ["value", "sequence", "data"],
    );
    assert.deepEqual(got[0].body, { a: 1 });
    assert.deepEqual(got[1].body, [[1, "two"], [3]]);
    assert.equal(got[2].body.toString(), "raw");
    assert.equal(got[2]._rawAmqpMessage.header.priority, 7);
  });
});

test("what is not there, is not allowed or is too large is said with the right code", async (t) => {
  const name = await queue(t);
  await using(client, async (client) => {
    await assert.rejects(client.createSender("no-such-queue").sendMessages({ body: 1 }), {
      code: "MessagingEntityNotFound",
    });
    await assert.rejects(client.createReceiver("no-such-queue").receiveMessages(1), {
      code: "MessagingEntityNotFound",
    });
    await assert.rejects(client.createSender(name).sendMessages({ body: "x".repeat(300_000) }), {
      code: "MessageSizeExceeded",
    });
    await assert.rejects(client.acceptSession(name, "a"), (error) => error.retryable === false);
  });
});

test("a receiver that waits for nothing comes back when its time is over", async (t) => {
  const name = await queue(t);
  await using(client, async (client) => {
    const receiver = client.createReceiver(name);
    assert.deepEqual(await receiver.receiveMessages(10, { maxWaitTimeInMs: 300 }), []);
    await client.createSender(name).sendMessages([{ body: 1 }]);
    // The same link: its drain was answered, so the SDK kept it.
    assert.deepEqual(bodies(await receive(receiver, 1)), [1]);
  });
});
