// What the SDK calls a full batch is taken, whatever the size of its messages. The namespace is of
// the standard tier (256 KB) or of the premium tier (1 MB, 100 MB): nodejs.py starts one of each.

import assert from "node:assert/strict";
import { test } from "node:test";
import { administration, client, queue, using } from "./broker.mjs";

const SIZES = [0, 1, 10, 100, 1_000, 10_000, 100_000];
const MIB = 1024 * 1024;
const { messagingSku } = await administration().getNamespaceProperties();

/** Fill a batch for each size and send it; how many messages were sent. */
async function fill(name, sizes, options) {
  let sent = 0;
  await using(client, async (client) => {
    const sender = client.createSender(name);
    for (const size of sizes) {
      const batch = await sender.createMessageBatch(options);
      const message = { body: Buffer.alloc(size, "x") };
      while (batch.tryAddMessage(message));
      assert.ok(batch.maxSizeInBytes - batch.sizeInBytes < size + 200, `${size} B: it is not full`);
      await sender.sendMessages(batch);
      sent += batch.count;
    }
  });
  return sent;
}

async function check(t, kilobytes, sizes, options) {
  const settings = kilobytes === undefined ? {} : { maxMessageSizeInKilobytes: kilobytes };
  const name = await queue(t, settings);
  const sent = await fill(name, sizes, options);
  const { activeMessageCount } = await administration().getQueueRuntimeProperties(name);
  assert.equal(activeMessageCount, sent);
}

if (messagingSku === "Standard") {
  test("256 KB: a full batch of bodies from nothing to 100 KB", (t) => check(t, undefined, SIZES));
} else {
  test("1 MB: a full batch of bodies from nothing to 100 KB", (t) => check(t, 1_024, SIZES));
  // This SDK takes the limit of a message for that of a batch. Of small bodies 100 MB are millions
  // of messages, more than it can make; so these fill what the SDK for Python fills.
  test("100 MB, 1 MB a batch: a full batch of bodies from nothing to 100 KB", (t) =>
    check(t, 102_400, SIZES, { maxSizeInBytes: MIB }));
  test("100 MB: a full batch of bodies of 10 KB and 100 KB", (t) =>
    check(t, 102_400, [10_000, 100_000]));
}
