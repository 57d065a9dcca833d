// Topics: fan-out, and filters of every kind, made by both of the SDK's rule interfaces.

import assert from "node:assert/strict";
import { test } from "node:test";
import { administration, client, collect, left, receive, topic, using } from "./broker.mjs";

const bodies = (messages) => messages.map((message) => message.body);

const MESSAGES = [
  { body: "red 3", subject: "shoes", applicationProperties: { colour: "red", size: 3 } },
  { body: "red 4.5", subject: "shoes", applicationProperties: { colour: "red", size: 4.5 } },
  { body: "blue 3", correlationId: "c", applicationProperties: { colour: "blue", size: 3 } },
  { body: "plain", contentType: "text/plain" },
];

async function selected(name, subscription) {
  return using(client, async (client) =>
    bodies(await left(client.createReceiver(name, subscription))),
  );
}

test("every subscription gets its own copy, and settles it by itself", async (t) => {
  const name = await topic(t, { one: {}, two: {} });
  await using(client, async (client) => {
    await client.createSender(name).sendMessages(MESSAGES);
    const one = client.createReceiver(name, "one");
    for (const message of await receive(one, 4)) await one.completeMessage(message);
    assert.deepEqual(await left(one), []);
    const two = client.createReceiver(name, "two");
    assert.deepEqual(
      bodies(await receive(two, 4)),
      MESSAGES.map((message) => message.body),
    );
  });
});

const FILTERS = {
  "SQL on user properties": [{ sqlExpression: "colour = 'red' AND size > 3" }, ["red 4.5"]],
  "SQL on system properties": [{ sqlExpression: "sys.Label LIKE 'sho%'" }, ["red 3", "red 4.5"]],
  "SQL with parameters": [
    { sqlExpression: "size = @size", sqlParameters: { "@size": 3 } },
    ["red 3", "blue 3"],
  ],
  "correlation on a system property": [{ correlationId: "c" }, ["blue 3"]],
  "correlation on the content type": [{ contentType: "text/plain" }, ["plain"]],
  "correlation on text": [{ applicationProperties: { colour: "red" } }, ["red 3", "red 4.5"]],
  // JavaScript has one kind of number: 3 travels as an integer, and in a rule as a double.
  "correlation on a whole number": [{ applicationProperties: { size: 3 } }, ["red 3", "blue 3"]],
  "correlation on a fraction": [{ applicationProperties: { size: 4.5 } }, ["red 4.5"]],
  "correlation on several": [
    { subject: "shoes", applicationProperties: { colour: "red", size: 3 } },
    ["red 3"],
  ],
};

for (const [kind, [filter, expected]] of Object.entries(FILTERS)) {
  test(`${kind}: over HTTP, and at the subscription's birth`, async (t) => {
    const name = await topic(t, { born: { defaultRuleOptions: { name: "mine", filter } }, later: {} });
    const admin = administration();
    await admin.deleteRule(name, "later", "$Default");
    const made = await admin.createRule(name, "later", "mine", filter);
    for (const [key, value] of Object.entries(filter)) assert.deepEqual(made.filter[key], value);
    await using(client, (client) => client.createSender(name).sendMessages(MESSAGES));
    assert.deepEqual(await selected(name, "born"), expected);
    assert.deepEqual(await selected(name, "later"), expected);
  });

  // The rule manager has no parameters: its protocol has no place for them.
  if (filter.sqlParameters) continue;
  test(`${kind}: over AMQP`, async (t) => {
    const name = await topic(t, { sub: {} });
    await using(client, async (client) => {
      const rules = client.createRuleManager(name, "sub");
      await rules.deleteRule("$Default");
      await rules.createRule("mine", filter);
      const [listed, ...others] = await collect(rules.listRules());
      assert.deepEqual(others, []);
      assert.equal(listed.name, "mine");
      for (const [key, value] of Object.entries(filter)) assert.deepEqual(listed.filter[key], value);
      await client.createSender(name).sendMessages(MESSAGES);
      assert.deepEqual(await selected(name, "sub"), expected);
      await assert.rejects(rules.createRule("mine", filter), {
        code: "MessagingEntityAlreadyExists",
      });
      await assert.rejects(rules.deleteRule("no-such-rule"));
    });
  });
}

test("an action changes its copy, and says which rule it was", async (t) => {
  const name = await topic(t, { sub: {} });
  await using(client, async (client) => {
    const rules = client.createRuleManager(name, "sub");
    await rules.deleteRule("$Default");
    await rules.createRule(
      "acting",
      { sqlExpression: "colour = 'red' AND size = 3" },
      { sqlExpression: "SET size = size + 10; REMOVE colour; SET sys.Label = 'changed'" },
    );
    await client.createSender(name).sendMessages(MESSAGES);
    const [got] = await receive(client.createReceiver(name, "sub"), 1);
    assert.equal(got.subject, "changed");
    assert.deepEqual(got.applicationProperties, { size: 13, RuleName: "acting" });
    const [rule] = await collect(rules.listRules());
    assert.equal(rule.action.sqlExpression.split(";").length, 3);
  });
});

test("a filter that cannot be read is refused on both roads", async (t) => {
  const name = await topic(t, { sub: {} });
  const filter = { sqlExpression: "colour = = 'red'" };
  await assert.rejects(administration().createRule(name, "sub", "bad", filter), { statusCode: 400 });
  await using(client, async (client) => {
    await assert.rejects(client.createRuleManager(name, "sub").createRule("bad", filter));
  });
});
