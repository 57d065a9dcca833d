// rhea, the AMQP library of Node.js, as a plain client: it knows nothing of Azure.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { once } from "node:events";
import { test } from "node:test";
import rhea from "rhea";
import { administration, queue } from "./broker.mjs";

const POLICY = "RootManageSharedAccessKey";
const PORT = Number(process.env.TANDEM_PORT);
const KEY = process.env.TANDEM_KEY;
const { types } = rhea;

/** A connection for one test: by SASL PLAIN, unless the options say otherwise. */
async function connect(t, options = {}) {
  const container = rhea.create_container();
  // What nobody asked for is shown, not thrown into the middle of another test.
  for (const event of ["error", "protocol_error", "connection_error", "disconnected"]) {
    container.on(event, () => {});
  }
  const connection = container.connect({
    host: "localhost",
    port: PORT,
    username: POLICY,
    password: KEY,
    reconnect: false,
    ...options,
  });
  t.after(() => connection.close());
  await once(connection, "connection_open");
  return connection;
}

async function sender(connection, options) {
  const link = connection.open_sender(options);
  await once(link, "sendable");
  return link;
}

/** Send, and wait for the outcome. */
async function send(link, message) {
  const delivery = link.send(message);
  await once(link, "settled");
  return delivery;
}

const outcome = (delivery) => delivery.remote_state.constructor.composite_type;

/** A receiver that gives a message when it is asked for one. */
function receiver(connection, source, options = {}) {
  const link = connection.open_receiver({
    source,
    credit_window: 0,
    autoaccept: false,
    autosettle: false,
    ...options,
  });
  link.next = async () => {
    link.add_credit(1);
    const [context] = await once(link, "message");
    return context;
  };
  return link;
}

/** All that is there, and is taken: what a drain brings. */
async function left(connection, source) {
  const link = receiver(connection, source, { snd_settle_mode: 1 });
  const bodies = [];
  link.on("message", (context) => bodies.push(context.message.body));
  link.drain = true;
  link.add_credit(100);
  await once(link, "receiver_drained");
  link.close();
  return bodies;
}

test("a wrong key is refused by SASL", async () => {
  const container = rhea.create_container();
  container.on("disconnected", () => {});
  const connection = container.connect({
    host: "localhost",
    port: PORT,
    username: POLICY,
    password: "wrong",
    reconnect: false,
  });
  const [context] = await once(connection, "connection_error");
  assert.match(String(context.error ?? context.connection.error), /auth/i);
});

test("anonymous, then a token on $cbs", async (t) => {
  const name = await queue(t);
  const connection = await connect(t, { username: "anonymous", password: undefined });
  const refused = connection.open_sender(name);
  await once(refused, "sender_error");
  assert.equal(refused.error.condition, "amqp:unauthorized-access");

  const audience = `sb://localhost:${PORT}/${name}`;
  const resource = encodeURIComponent(audience);
  const expires = Math.floor(Date.now() / 1000) + 600;
  const signature = createHmac("sha256", KEY).update(`${resource}\n${expires}`).digest("base64");
  const token =
    `SharedAccessSignature sr=${resource}&sig=${encodeURIComponent(signature)}` +
    `&se=${expires}&skn=${POLICY}`;
  const answers = connection.open_receiver({ source: "$cbs", target: "answers" });
  const cbs = await sender(connection, "$cbs");
  cbs.send({
    message_id: "1",
    reply_to: "answers",
    application_properties: {
      operation: "put-token",
      type: "servicebus.windows.net:sastoken",
      name: audience,
    },
    body: token,
  });
  const [context] = await once(answers, "message");
  assert.equal(context.message.correlation_id, "1");
  assert.ok([200, 202].includes(context.message.application_properties["status-code"]));
  await send(await sender(connection, name), { body: "allowed" });
  assert.deepEqual(await left(connection, name), ["allowed"]);
});

test("what was sent comes back as it was", async (t) => {
  const name = await queue(t);
  const connection = await connect(t);
  const sent = {
    durable: true,
    priority: 7,
    ttl: 60_000,
    message_id: "m",
    user_id: Buffer.from("somebody"),
    to: "there",
    subject: "label",
    reply_to: "here",
    correlation_id: "c",
    content_type: "text/plain",
    content_encoding: "none",
    group_id: "g",
    group_sequence: 3,
    reply_to_group_id: "back",
    application_properties: { text: "ü", whole: 3, half: 0.5, yes: true },
    body: { list: [1, "two"], map: { inner: true } },
  };
  const delivery = await send(await sender(connection, name), sent);
  assert.equal(outcome(delivery), "accepted");
  const { message } = await receiver(connection, name).next();
  for (const [key, value] of Object.entries(sent)) assert.deepEqual(message[key], value, key);
  assert.equal(Number(message.message_annotations["x-opt-sequence-number"]), 1);
});

test("priorities come back as they were sent", async (t) => {
  const name = await queue(t);
  const connection = await connect(t);
  const link = await sender(connection, name);
  for (const priority of [0, 4, 9, 255]) await send(link, { body: priority, priority });
  await send(link, { body: "none" });
  const link2 = receiver(connection, name, { snd_settle_mode: 1 });
  const got = [];
  for (let n = 0; n < 5; n++) got.push((await link2.next()).message.priority);
  assert.deepEqual(got, [0, 4, 9, 255, undefined]);
});

test("a settled send is stored; a settled receiver takes away", async (t) => {
  const name = await queue(t);
  const connection = await connect(t);
  const link = await sender(connection, { target: name, snd_settle_mode: 1, autosettle: true });
  link.send({ body: "settled" }).update(true);
  const { message, delivery } = await receiver(connection, name, { snd_settle_mode: 1 }).next();
  assert.equal(message.body, "settled");
  assert.equal(delivery.remote_settled, true);
  assert.deepEqual(await left(connection, name), []);
});

test("accepted, released, modified, rejected", async (t) => {
  const name = await queue(t);
  const connection = await connect(t);
  const link = await sender(connection, name);
  const inbox = receiver(connection, name);
  await send(link, { body: "m" });

  let context = await inbox.next();
  context.delivery.release();
  context = await inbox.next();
  assert.ok(!context.message.delivery_count, "released is not counted");
  context.delivery.modified({ delivery_failed: true, undeliverable_here: false });
  context = await inbox.next();
  assert.equal(context.message.delivery_count, 1);
  context.delivery.reject({ condition: "my:reason", description: "because" });
  const dead = await receiver(connection, `${name}/$DeadLetterQueue`).next();
  assert.deepEqual(dead.message.application_properties, {
    DeadLetterReason: "my:reason",
    DeadLetterErrorDescription: "because",
  });
  dead.delivery.accept();

  await send(link, { body: "deferred" });
  context = await inbox.next();
  context.delivery.modified({ undeliverable_here: true });
  await send(link, { body: "accepted" });
  context = await inbox.next();
  assert.equal(context.message.body, "accepted");
  context.delivery.accept();
  assert.deepEqual(await left(connection, name), []);
  assert.deepEqual(await left(connection, `${name}/$DeadLetterQueue`), []);
});

test("1,000 messages, pipelined, arrive in order", async (t) => {
  const name = await queue(t);
  const connection = await connect(t);
  const link = connection.open_sender(name);
  let next = 0;
  let accepted = 0;
  link.on("sendable", () => {
    while (link.sendable() && next < 1_000) link.send({ body: next++ });
  });
  await new Promise((resolve) => {
    link.on("accepted", () => ++accepted === 1_000 && resolve());
  });
  const got = [];
  const inbox = connection.open_receiver({ source: name, credit_window: 100 });
  await new Promise((resolve) => {
    inbox.on("message", ({ message }) => got.push(message.body) === 1_000 && resolve());
  });
  assert.deepEqual(got, [...Array(1_000).keys()]);
});

test("a large message in many frames, both ways; one too large is rejected", async (t) => {
  const name = await queue(t);
  const connection = await connect(t, { max_frame_size: 1_024 });
  const link = await sender(connection, name);
  const body = rhea.message.data_section(Buffer.alloc(200_000, 7));
  await send(link, { body });
  const { message } = await receiver(connection, name).next();
  assert.deepEqual(message.body.content, Buffer.alloc(200_000, 7));
  assert.equal(Number(link.get_option("max_message_size", link.remote.attach.max_message_size)), 262_144);
  const delivery = await send(link, { body: rhea.message.data_section(Buffer.alloc(300_000)) });
  assert.equal(delivery.remote_state.error.condition, "amqp:link:message-size-exceeded");
});

test("what is not there, and what is dynamic, is refused; the connection goes on", async (t) => {
  const name = await queue(t);
  const connection = await connect(t);
  const absent = connection.open_sender("no-such-queue");
  await once(absent, "sender_error");
  assert.equal(absent.error.condition, "amqp:not-found");
  const dynamic = connection.open_receiver({ source: { dynamic: true } });
  await once(dynamic, "receiver_error");
  assert.match(dynamic.error.condition, /^amqp:not-(allowed|implemented)$/);
  await send(await sender(connection, name), { body: "still here" });
});

test("drain ends when there is nothing more", async (t) => {
  const name = await queue(t);
  const connection = await connect(t);
  const link = await sender(connection, name);
  for (const body of [1, 2, 3]) await send(link, { body });
  assert.deepEqual(await left(connection, name), [1, 2, 3]);
  assert.deepEqual(await left(connection, name), []);
});

test("a session by its filter", async (t) => {
  const name = await queue(t, { requiresSession: true });
  const connection = await connect(t);
  const link = await sender(connection, name);
  for (const group_id of ["a", "b"]) await send(link, { body: group_id, group_id });
  const source = { address: name, filter: { "com.microsoft:session-filter": "b" } };
  const { message } = await receiver(connection, source).next();
  assert.equal(message.body, "b");
});

// rhea has no transactions; their values can be written by hand (AMQP 1.0 §4.5). Its transfers
// carry no state, so only settlements are tried; sending in a transaction is Proton's part.
const described = (code, list) => types.described(types.wrap_ulong(code), types.wrap_list(list));
const DECLARE = Buffer.from([0x00, 0x53, 0x77, 0x00, 0x53, 0x31, 0x45]);
const discharge = (id, fail) =>
  Buffer.from([
    ...[0x00, 0x53, 0x77, 0x00, 0x53, 0x32, 0xc0, id.length + 4, 2],
    ...[0xa0, id.length, ...id, fail ? 0x41 : 0x42],
  ]);

async function coordinator(t, connection) {
  t.mock.method(console, "error", () => {}); // it says that it knows neither 0x30 nor `declared`
  const session = connection.create_session();
  session.begin();
  const control = session.create_sender("coordinator");
  control.local.attach.target = described(0x30, []);
  control.attach();
  await once(control, "sendable");
  const ask = async (bytes) => {
    const delivery = control.send(bytes, undefined, 0);
    await once(control, "settled");
    return delivery;
  };
  return {
    declare: async () => (await ask(DECLARE)).remote_state.value[0].value,
    discharge: (id, fail) => ask(discharge(id, fail)),
  };
}

for (const fail of [false, true]) {
  test(`a settlement in a transaction that is ${fail ? "rolled back" : "committed"}`, async (t) => {
    const name = await queue(t);
    const connection = await connect(t);
    await send(await sender(connection, name), { body: "m" });
    const { delivery } = await receiver(connection, name).next();
    const transaction = await coordinator(t, connection);
    const id = await transaction.declare();
    delivery.update(false, described(0x34, [types.wrap_binary(id), described(0x24, [])]));
    assert.equal(outcome(await transaction.discharge(id, fail)), "accepted");
    const runtime = await administration().getQueueRuntimeProperties(name);
    // Rolled back: it is still there, and still locked, as in Azure.
    assert.equal(runtime.totalMessageCount, fail ? 1 : 0);
  });
}

test("a transaction that nobody declared is refused", async (t) => {
  const connection = await connect(t);
  const transaction = await coordinator(t, connection);
  const { remote_state: state } = await transaction.discharge(Buffer.from("nobody's"), false);
  assert.equal(state.error.condition, "amqp:transaction:unknown-id");
});
