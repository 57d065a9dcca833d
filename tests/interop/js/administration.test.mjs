// The administration client, over HTTPS: what it makes, reads, changes, lists and removes.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";
import { administration, client, collect, fresh, queue, receive, topic, using } from "./broker.mjs";

test("a queue from birth to death", async (t) => {
  const admin = administration();
  const name = fresh("queue");
  const wanted = {
    lockDuration: "PT45S",
    maxSizeInMegabytes: 2048,
    requiresDuplicateDetection: true,
    duplicateDetectionHistoryTimeWindow: "PT2M",
    requiresSession: true,
    defaultMessageTimeToLive: "P2D",
    deadLetteringOnMessageExpiration: true,
    maxDeliveryCount: 7,
    enableBatchedOperations: false,
    autoDeleteOnIdle: "PT1H",
    userMetadata: "notes <&>",
    status: "Active",
  };
  const made = await admin.createQueue(name, wanted);
  const read = await admin.getQueue(name);
  for (const [key, value] of Object.entries({ name, ...wanted })) {
    assert.deepEqual(made[key], value, key);
    assert.deepEqual(read[key], value, key);
  }
  await assert.rejects(admin.createQueue(name), { code: "MessageEntityAlreadyExistsError" });
  const changed = await admin.updateQueue({
    ...read,
    maxDeliveryCount: 3,
    userMetadata: "other",
    status: "SendDisabled",
  });
  assert.deepEqual(
    [changed.maxDeliveryCount, changed.userMetadata, changed.status, changed.lockDuration],
    [3, "other", "SendDisabled", "PT45S"],
  );
  await assert.rejects(admin.updateQueue({ ...changed, requiresSession: false }), {
    statusCode: 400,
  });
  assert.equal(await admin.queueExists(name), true);
  await admin.deleteQueue(name);
  assert.equal(await admin.queueExists(name), false);
  await assert.rejects(admin.getQueue(name), { code: "MessageEntityNotFoundError" });
  await assert.rejects(admin.deleteQueue(name), { code: "MessageEntityNotFoundError" });
});

test("what a queue holds: counts and times", async (t) => {
  const admin = administration();
  const name = await queue(t);
  await using(client, async (client) => {
    const sender = client.createSender(name);
    await sender.sendMessages([1, 2, 3].map((body) => ({ body })));
    await sender.scheduleMessages({ body: 4 }, new Date(Date.now() + 3_600_000));
    const receiver = client.createReceiver(name);
    const [got] = await receive(receiver, 1);
    await receiver.deadLetterMessage(got);
  });
  const runtime = await admin.getQueueRuntimeProperties(name);
  assert.deepEqual(
    [
      runtime.totalMessageCount,
      runtime.activeMessageCount,
      runtime.deadLetterMessageCount,
      runtime.scheduledMessageCount,
      runtime.transferMessageCount,
    ],
    [4, 2, 1, 1, 0],
  );
  assert.ok(runtime.sizeInBytes > 0);
  assert.ok(runtime.createdAt <= runtime.accessedAt);
  const listed = await collect(admin.listQueuesRuntimeProperties());
  assert.equal(listed.find((one) => one.name === name).activeMessageCount, 2);
});

test("lists come page by page", async (t) => {
  const admin = administration();
  const prefix = fresh("page");
  const names = [...Array(7).keys()].map((n) => `${prefix}-${n}`);
  for (const name of names) await admin.createQueue(name);
  t.after(() => Promise.all(names.map((name) => admin.deleteQueue(name))));
  const all = await collect(admin.listQueues());
  assert.deepEqual(all.map((one) => one.name).filter((name) => name.startsWith(prefix)), names);
  const pages = await collect(admin.listQueues().byPage({ maxPageSize: 3 }));
  assert.ok(pages.length >= 3);
  assert.ok(pages.every((page) => page.length <= 3));
  assert.equal(pages.flat().length, all.length);
});

test("topics and subscriptions from birth to death", async (t) => {
  const admin = administration();
  const name = fresh("topic");
  const made = await admin.createTopic(name, {
    defaultMessageTimeToLive: "P1D",
    requiresDuplicateDetection: true,
    userMetadata: "t",
  });
  assert.deepEqual(
    [made.name, made.defaultMessageTimeToLive, made.requiresDuplicateDetection, made.userMetadata],
    [name, "P1D", true, "t"],
  );
  const changed = await admin.updateTopic({ ...made, userMetadata: "u" });
  assert.equal(changed.userMetadata, "u");

  const sub = await admin.createSubscription(name, "sub", {
    lockDuration: "PT30S",
    maxDeliveryCount: 4,
    deadLetteringOnFilterEvaluationExceptions: false,
  });
  assert.deepEqual(
    [sub.topicName, sub.subscriptionName, sub.lockDuration, sub.maxDeliveryCount],
    [name, "sub", "PT30S", 4],
  );
  await admin.createSubscription(name, "other");
  await assert.rejects(admin.createSubscription(name, "sub"), {
    code: "MessageEntityAlreadyExistsError",
  });
  assert.equal((await admin.updateSubscription({ ...sub, maxDeliveryCount: 9 })).maxDeliveryCount, 9);
  assert.deepEqual(
    (await collect(admin.listSubscriptions(name))).map((one) => one.subscriptionName),
    ["other", "sub"],
  );
  assert.equal((await admin.getTopicRuntimeProperties(name)).subscriptionCount, 2);
  await using(client, (client) => client.createSender(name).sendMessages({ body: 1 }));
  const runtime = await admin.getSubscriptionRuntimeProperties(name, "sub");
  assert.deepEqual([runtime.activeMessageCount, runtime.totalMessageCount], [1, 1]);
  assert.equal((await collect(admin.listSubscriptionsRuntimeProperties(name))).length, 2);

  await admin.deleteSubscription(name, "sub");
  assert.equal(await admin.subscriptionExists(name, "sub"), false);
  assert.equal(await admin.subscriptionExists(name, "other"), true);
  await admin.deleteTopic(name);
  assert.equal(await admin.topicExists(name), false);
  await assert.rejects(admin.getSubscription(name, "other"), { statusCode: 404 });
});

test("rules from birth to death", async (t) => {
  const admin = administration();
  const name = await topic(t, { sub: {} });
  const [born, ...others] = await collect(admin.listRules(name, "sub"));
  assert.deepEqual([born.name, others], ["$Default", []]);
  const made = await admin.createRule(
    name,
    "sub",
    "mine",
    { sqlExpression: "a = @a", sqlParameters: { "@a": "x" } },
    { sqlExpression: "SET b = @b", sqlParameters: { "@b": 2 } },
  );
  const read = await admin.getRule(name, "sub", "mine");
  for (const rule of [made, read]) {
    assert.deepEqual(rule.filter, { sqlExpression: "a = @a", sqlParameters: { "@a": "x" } });
    assert.deepEqual(rule.action, { sqlExpression: "SET b = @b", sqlParameters: { "@b": 2 } });
  }
  const when = new Date("2026-01-02T03:04:05.000Z");
  const changed = await admin.updateRule(name, "sub", {
    ...read,
    filter: { correlationId: "c", applicationProperties: { s: "t", n: 1.5, b: true, when } },
    action: undefined,
  });
  assert.equal(changed.filter.correlationId, "c");
  assert.deepEqual(changed.filter.applicationProperties, { s: "t", n: 1.5, b: true, when });
  assert.equal(await admin.ruleExists(name, "sub", "mine"), true);
  await admin.deleteRule(name, "sub", "mine");
  assert.equal(await admin.ruleExists(name, "sub", "mine"), false);
});

test("forwarding is set, works, and is taken back", async (t) => {
  const admin = administration();
  const target = await queue(t);
  const name = await queue(t, { forwardTo: target });
  const made = await admin.getQueue(name);
  assert.ok(made.forwardTo.endsWith(`/${target}`), made.forwardTo);
  await using(client, async (client) => {
    await client.createSender(name).sendMessages({ body: "through" });
    const [got] = await receive(client.createReceiver(target), 1);
    assert.equal(got.body, "through");
  });
  const { forwardTo, ...without } = made;
  assert.equal((await admin.updateQueue(without)).forwardTo, undefined);
});

test("a policy of a queue allows what it says, there and nowhere else", async (t) => {
  const key = randomBytes(32).toString("base64");
  const rule = (keyName, accessRights) => ({
    claimType: "SharedAccessKey",
    claimValue: "None",
    keyName,
    accessRights,
    primaryKey: key,
    secondaryKey: randomBytes(32).toString("base64"),
  });
  const name = await queue(t, { authorizationRules: [rule("reader", ["Listen"])] });
  const other = await queue(t);
  const [made] = (await administration().getQueue(name)).authorizationRules;
  assert.deepEqual([made.keyName, made.accessRights], ["reader", ["Listen"]]);
  const string = process.env.TANDEM_PLAIN.replace(
    /SharedAccessKeyName=.*?;SharedAccessKey=[^;]+/,
    `SharedAccessKeyName=reader;SharedAccessKey=${key}`,
  );
  const open = () => new ServiceBusClient(string, { retryOptions: { maxRetries: 0 } });
  await using(client, (client) => client.createSender(name).sendMessages({ body: 1 }));
  await using(open, async (client) => {
    const [got] = await receive(client.createReceiver(name), 1);
    assert.equal(got.body, 1);
    const denied = { code: "UnauthorizedAccess" };
    await assert.rejects(client.createSender(name).sendMessages({ body: 2 }), denied);
    await assert.rejects(client.createReceiver(other).receiveMessages(1), denied);
  });
});

test("the namespace says who it is; a wrong key learns nothing", async () => {
  const info = await administration().getNamespaceProperties();
  assert.equal(info.messagingSku, "Standard");
  const wrong = process.env.TANDEM_TLS.replace(/SharedAccessKey=[^;]+/, "SharedAccessKey=wrong");
  await assert.rejects(new ServiceBusAdministrationClient(wrong).getQueue("any"), {
    statusCode: 401,
  });
});
