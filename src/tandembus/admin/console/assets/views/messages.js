import { bytes, clear, confirmed, dialog, failure, field, h, n, table, toast } from "../dom.js";
import { get, post } from "../api.js";
export default async function messages(body, path, info) {
  const isGrave = info.kind === "dead-letter", isTopic = info.kind === "topic";
  const state = h("select", { "aria-label": "State" }, ["", "active", "scheduled", "deferred", "delayed"].map((v) => h("option", { value: v }, v || "all states")));
  const filter = h("input", { placeholder: "SQL filter, e.g. tier = 'gold'", "aria-label": "SQL filter", size: 30 });
  const session = h("input", { placeholder: "session", "aria-label": "Session", size: 12, value: sessionStorage.getItem("session") ?? "" });
  sessionStorage.removeItem("session");
  const from = h("input", { placeholder: "from number", "aria-label": "From sequence number", size: 12 });
  const list = h("div", { class: "card", id: "messages" }), note = h("span", { class: "soft" });
  const chosen = new Set();
  let rows = [], next = null;
  const act = (name, word, run, danger = false) => h("button", { class: danger ? "danger" : null, "data-act": name, onclick: async () => {
    if (!chosen.size) { toast("Choose messages first."); return; }
    try { await run([...chosen]); chosen.clear(); await show(); } catch (error) { toast(error.message); }
  } }, word);
  const tools = h("div", { class: "row" });
  if (!isTopic) {
    tools.append(h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); show(); } }, isGrave ? null : state, filter, info.sessions ? session : null, from, h("button", {}, "Look")));
    if (isGrave) tools.append(act("resubmit", "Resubmit", async (numbers) => { const { done, to } = await post("resubmit", { path, numbers }); toast(`${done} sent again to ${to}.`); }));
    tools.append(act("move", "Move to …", (numbers) => move(numbers)), act("reactivate", "Return to active", (numbers) => post("reactivate", { path, numbers })), act("delete", "Delete", async (numbers) => { if (await confirmed(`Delete ${numbers.length} messages?`, "Delete")) await post("discard", { path, numbers }); }, true));
    tools.append(h("button", { onclick: save }, "Export"), h("button", { class: "danger", onclick: purge }, "Purge"));
  }
  if (!isGrave) tools.append(h("button", { class: "main", onclick: () => write(path, show) }, "Send"));
  clear(body, h("div", { class: "head" }, tools, note), list);
  async function show(after) {
    if (isTopic) { clear(list, h("p", { class: "soft" }, "A topic keeps nothing itself: look into its subscriptions.")); return; }
    try {
      const answer = await get("messages", { path, state: state.value, filter: filter.value, session: session.value, from: after ?? from.value });
      rows = answer.rows; next = answer.next;
      if (!after) chosen.clear();
      note.textContent = rows.length ? "" : answer.looked >= 10000 ? "None so far." : "";
      clear(list, table([
        { name: h("input", { type: "checkbox", "aria-label": "Choose all", onchange: (event) => { for (const box of list.querySelectorAll("tbody input")) { box.checked = event.target.checked; box.dispatchEvent(new Event("change")); } } }), show: (r) => h("input", { type: "checkbox", "aria-label": `Choose ${r.sequence_number}`, onchange: (event) => (event.target.checked ? chosen.add(r.sequence_number) : chosen.delete(r.sequence_number)) }) },
        { name: "Number", show: (r) => h("button", { class: "small", onclick: () => look(r) }, r.sequence_number) }, { name: "Enqueued", show: (r) => r.enqueued_time.replace("T", " ").slice(0, 19) }, { name: isGrave ? "Reason" : "State", show: (r) => h("span", { class: `tag ${isGrave ? "bad" : ""}` }, isGrave ? r.dead_letter_reason ?? "–" : r.state) },
        { name: "Body", wide: true, show: (r) => (r.body ?? r.body_base64 ?? JSON.stringify(r.body_value) ?? "").slice(0, 120) }, { name: "Message id", show: (r) => h("span", { class: "mono", title: r.message_id ?? "" }, String(r.message_id ?? "").slice(0, 16)) }, { name: "Session", show: (r) => r.session_id ?? "" }, { name: "Level", num: true, show: (r) => (info.levels > 1 ? r.level : "") }, { name: "Deliveries", num: true, show: (r) => r.delivery_count }, { name: "Size", num: true, show: (r) => bytes(r.size) }],
        rows, { key: (r) => r.sequence_number, empty: "No message." }),
        next ? h("button", { class: "small", onclick: () => show(next) }, "Next page") : null);
    } catch (error) { clear(list, failure(error)); }
  }
  async function look(row) {
    const { message } = row.is_cut ? await get("message", { path, number: row.sequence_number }) : { message: row };
    const { properties = {}, body: text, body_base64, body_value, ...rest } = message;
    const form = h("select", { "aria-label": "Form of the body", onchange: () => draw() }, ["text", "JSON", "hex"].map((v) => h("option", {}, v)));
    const out = h("pre", { tabindex: 0 });
    const raw = text ?? (body_base64 ? atob(body_base64) : JSON.stringify(body_value, null, 2));
    function draw() {
      if (form.value === "hex") out.textContent = hex(body_base64 ? Uint8Array.from(atob(body_base64), (c) => c.charCodeAt(0)) : new TextEncoder().encode(raw));
      else if (form.value === "JSON") { try { out.textContent = JSON.stringify(JSON.parse(raw), null, 2); } catch { out.textContent = "This is not JSON."; } } else out.textContent = raw;
    }
    draw();
    const box = dialog(`Message ${row.sequence_number}`, h("dl", {}, Object.entries(rest).map(([k, v]) => [h("dt", {}, k), h("dd", {}, String(v))])),
      h("h3", {}, "Application properties"), Object.keys(properties).length ? h("dl", {}, Object.entries(properties).map(([k, v]) => [h("dt", {}, k), h("dd", {}, typeof v === "string" ? v : JSON.stringify(v))])) : h("p", { class: "soft" }, "None."),
      h("div", { class: "row" }, h("h3", {}, "Body"), form), out,
      h("div", { class: "row" }, isGrave ? h("button", { onclick: () => { box.close(); edit(message, raw); } }, "Edit and resubmit") : null, h("button", { onclick: () => box.close() }, "Close")));
  }
  function edit(message, raw) {
    const area = h("textarea", { value: raw, "aria-label": "Body" }), to = h("input", { placeholder: "where it came from" }), problem = h("div");
    const box = dialog(`Edit ${message.sequence_number}`, area, field("Send to", to), problem, h("div", { class: "row" }, h("button", { class: "main", onclick: async () => { try { await post("resubmit", { path, numbers: [message.sequence_number], to: to.value, edits: { body: area.value } }); toast("Sent again."); box.close(); show(); } catch (error) { clear(problem, failure(error)); } } }, "Resubmit"), h("button", { onclick: () => box.close() }, "Cancel")));
  }
  function move(numbers) {
    return new Promise((resolve, reject) => {
      const to = h("input", { placeholder: "queue or topic", autofocus: true });
      const box = dialog(`Move ${numbers.length} messages`, field("To", to), h("div", { class: "row" }, h("button", { class: "main", onclick: () => { post("resubmit", { path, numbers, to: to.value }).then(() => { toast("Moved."); resolve(); }, reject); box.close(); } }, "Move"), h("button", { onclick: () => { box.close(); resolve(); } }, "Cancel")));
    });
  }
  function save() {
    const link = h("a", { download: `${path.replaceAll("/", "_")}.jsonl`, href: URL.createObjectURL(new Blob([rows.map((r) => JSON.stringify(r)).join("\n")], { type: "application/x-ndjson" })) });
    link.click();
    URL.revokeObjectURL(link.href);
  }
  async function purge() {
    if (!(await confirmed(`Delete everything that waits in ${path}?`, "Purge"))) return;
    let total = 0, done = 1;
    while (done) { ({ done } = await post("purge", { path })); total += done; note.textContent = `${n(total)} deleted …`; }
    toast(`${n(total)} deleted.`); show();
  }
  await show();
}
function hex(data) {
  const out = [];
  for (let at = 0; at < Math.min(data.length, 65536); at += 16) { const part = [...data.slice(at, at + 16)]; out.push(`${at.toString(16).padStart(6, "0")}  ${part.map((b) => b.toString(16).padStart(2, "0")).join(" ").padEnd(47)}  ${part.map((b) => (b > 31 && b < 127 ? String.fromCharCode(b) : ".")).join("")}`); }
  return out.join("\n");
}
function write(path, done) {
  const body = h("textarea", { value: "", "aria-label": "Body", autofocus: true }), properties = h("textarea", { placeholder: '{"tier": "gold"}', "aria-label": "Properties as JSON" });
  const id = h("input"), session = h("input"), subject = h("input"), kind = h("input", { placeholder: "application/json" }), when = h("input", { placeholder: "10m, or a time" }), ttl = h("input", { type: "number", min: 0, step: "any" }), priority = h("input", { type: "number", min: 0, max: 9 }), count = h("input", { type: "number", min: 1, max: 500, value: 1 }), problem = h("div");
  const box = dialog(`Send to ${path}`, h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      const one = { body: body.value, properties: properties.value.trim() ? JSON.parse(properties.value) : {} };
      for (const [name, input] of [["message_id", id], ["session_id", session], ["subject", subject], ["content_type", kind], ["scheduled_enqueue_time", when]]) if (input.value.trim()) one[name] = input.value.trim();
      if (ttl.value) one.time_to_live_s = Number(ttl.value);
      if (priority.value) one.priority = Number(priority.value);
      await post("send", { path, messages: Array.from({ length: Number(count.value) }, () => one) });
      toast("Sent."); box.close(); done();
    } catch (error) { clear(problem, failure(error)); }
  } }, h("label", {}, "Body", body), h("label", {}, "Application properties, JSON", properties), h("div", { class: "form" }, field("Message id", id), field("Session", session), field("Subject", subject), field("Content type", kind), field("Scheduled", when), field("Time to live, s", ttl), field("Priority 0–9", priority), field("How many", count)), problem, h("div", { class: "row" }, h("button", { class: "main" }, "Send"), h("button", { type: "button", onclick: () => box.close() }, "Cancel"))));
}
