// @azure/service-bus as a program of `make ladder`: it sends a body, receives it in one of four
// ways, and says its hash. Requests and replies are as in tests/interop/ladder/program.py.

import { createHash } from "node:crypto";
import { open } from "node:fs/promises";
import { createInterface } from "node:readline";
import { ServiceBusClient } from "@azure/service-bus";
import WebSocket from "ws";

const WAIT_MS = 600_000;
const retryOptions = { maxRetries: 0, timeoutInMs: WAIT_MS };

function client() {
  const { TANDEM_ROAD, TANDEM_PLAIN, TANDEM_TLS } = process.env;
  if (TANDEM_ROAD === "plain") return new ServiceBusClient(TANDEM_PLAIN, { retryOptions });
  if (TANDEM_ROAD === "tls") return new ServiceBusClient(TANDEM_TLS, { retryOptions });
  const webSocketOptions = { webSocket: WebSocket };
  return new ServiceBusClient(TANDEM_TLS, { retryOptions, webSocketOptions });
}

async function bodyOf({ file, offset, size }) {
  const opened = await open(file);
  try {
    const { buffer } = await opened.read(Buffer.alloc(size), 0, size, offset);
    return buffer;
  } finally {
    await opened.close();
  }
}

async function receive(opened, queue, way) {
  const receiveMode = way === "delete" ? "receiveAndDelete" : "peekLock";
  // A lock of five minutes needs no renewal.
  const maxAutoLockRenewalDurationInMs = 0;
  const receiver = opened.createReceiver(queue, { receiveMode, maxAutoLockRenewalDurationInMs });
  if (way === "peek") {
    const [found] = await receiver.peekMessages(1);
    return found.body;
  }
  let [received] = await receiver.receiveMessages(1, { maxWaitTimeInMs: WAIT_MS });
  if (way === "defer") {
    await receiver.deferMessage(received);
    [received] = await receiver.receiveDeferredMessages(received.sequenceNumber);
  }
  if (way !== "delete") await receiver.completeMessage(received);
  return received.body;
}

async function answer(request) {
  let step = "send";
  const opened = client();
  try {
    await opened.createSender(request.queue).sendMessages({ body: await bodyOf(request) });
    if (request.way === "send") return {};
    step = "receive";
    const got = await receive(opened, request.queue, request.way);
    return { sha256: createHash("sha256").update(got).digest("hex") };
  } catch (error) {
    const text = `${step}: ${error.name}: ${error.code ?? ""} ${error.message}`;
    return { error: text, is_too_large: error.code === "MessageSizeExceeded" };
  } finally {
    await opened.close().catch(() => {});
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await answer(JSON.parse(line))));
}
