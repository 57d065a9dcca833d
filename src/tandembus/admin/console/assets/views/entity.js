import { bytes, clear, confirmed, failure, field, h, n, span, table, toast } from "../dom.js";
import { get, listen, post } from "../api.js";
import messages from "./messages.js";
import rules from "./rules.js";
export default async function entity(main, [path, tab]) {
  const info = await get("entity", { path });
  const figures = h("div", { class: "cards" }), body = h("div", { role: "tabpanel" });
  const grave = `${path}/$DeadLetterQueue`, notTransferred = `${path}/$Transfer/$DeadLetterQueue`;
  const tabs = [];
  if (info.kind !== "topic") tabs.push(["messages", "Messages", () => messages(body, path, info)], ["dead", "Dead letters", () => messages(body, grave, { ...info, kind: "dead-letter" })]);
  else tabs.push(["subscriptions", "Subscriptions", subscriptions], ["messages", "Send", () => messages(body, path, info)]);
  if (info.transfer_dead || tab === "transfer") tabs.push(["transfer", "Transfer dead letters", () => messages(body, notTransferred, { ...info, kind: "dead-letter" })]);
  if (info.kind === "subscription") tabs.push(["rules", "Rules", () => rules(body, path)]);
  if (info.sessions) tabs.push(["sessions", "Sessions", sessions]);
  tabs.push(["settings", "Settings", settings]);
  const bar = h("div", { class: "tabs", role: "tablist" }, tabs.map(([id, name]) => h("button", { role: "tab", "data-tab": id, onclick: () => open(id) }, name)));
  main.append(h("div", { class: "head" }, h("div", {}, h("div", { class: "crumbs" }, h("a", { href: "#/entities" }, "Entities"), " / ", info.kind), h("h1", {}, path)), h("div", { class: "grow" }), info.may.manage ? h("button", { class: "danger", onclick: remove }, "Delete") : null), figures, bar, body);
  let stop = () => {};
  async function open(id) {
    stop(); stop = () => {};
    const found = tabs.find(([each]) => each === id) ?? tabs[0];
    for (const button of bar.children) button.setAttribute("aria-selected", String(button.dataset.tab === found[0]));
    clear(body);
    try { stop = (await found[2]()) ?? (() => {}); } catch (error) { clear(body, failure(error)); }
  }
  function draw(now) {
    const one = (name, value) => h("div", { class: "card figure" }, h("div", { class: "name" }, name), h("div", { class: "value" }, value));
    clear(figures, one("Active", n(now.active)), one("Scheduled", n(now.scheduled)), one("Deferred", n(now.deferred)), one("Dead-lettered", n(now.dead)), now.transfer ? one("To be forwarded", n(now.transfer)) : null, now.transfer_dead ? one("Transfer dead-lettered", n(now.transfer_dead)) : null, one("Size", bytes(now.bytes)), one("In, in all", n(now.in)), one("Out, in all", n(now.out)), one("Oldest", info.oldest_ms ? span(info.oldest_ms) : "–"));
  }
  async function remove() {
    if (!(await confirmed(`Delete ${path} with all its messages?`, "Delete"))) return;
    await post("delete-entity", { path }); toast(`${path} was deleted.`); location.hash = "#/entities";
  }
  function subscriptions() {
    clear(body, h("div", { class: "card" }, table([{ name: "Name", show: (r) => h("a", { href: `#/entity/${encodeURIComponent(r.path)}` }, r.path) }, { name: "Active", num: true, show: (r) => n(r.active) }, { name: "Dead-lettered", num: true, show: (r) => n(r.dead) }], info.subscriptions, { empty: "No subscription: what is sent goes nowhere." })));
  }
  async function sessions() {
    let skip = 0;
    const list = h("div", { class: "card", id: "sessions" });
    clear(body, list);
    async function show() {
      const { total, rows } = await get("sessions", { path, skip });
      clear(list, h("h2", {}, `${n(total)} sessions`), table([{ name: "Session", show: (r) => h("a", { href: `#/entity/${encodeURIComponent(path)}/messages`, onclick: () => sessionStorage.setItem("session", r.id) }, r.id) }, { name: "Holder", show: (r) => (r.holder === null ? h("span", { class: "soft" }, "nobody") : `link ${r.holder}`) }, { name: "Lock left", num: true, show: (r) => (r.left_ms ? span(r.left_ms) : "–") }, { name: "Waiting", num: true, show: (r) => n(r.waiting) }, { name: "Locked", num: true, show: (r) => n(r.held) }, { name: "State", num: true, show: (r) => (r.state === null ? "–" : bytes(r.state)) }], rows, { empty: "No session has a message, a holder or a state." }),
        h("div", { class: "row" }, h("button", { class: "small", disabled: skip === 0, onclick: () => { skip = Math.max(0, skip - 50); show(); } }, "Back"), h("button", { class: "small", disabled: skip + 50 >= total, onclick: () => { skip += 50; show(); } }, "Next")));
    }
    await show();
    const timer = setInterval(() => show().catch(() => {}), 2000);
    return () => clearInterval(timer);
  }
  function settings() {
    const problem = h("div"), inputs = {};
    const form = h("form", { class: "card", onsubmit: async (event) => {
      event.preventDefault();
      const changed = Object.fromEntries(Object.entries(inputs).filter(([name, input]) => input.value !== info.settings[name]).map(([name, input]) => [name, input.value]));
      try { const { changed: steps } = await post("put-entity", { kind: info.kind, path, settings: changed }); toast(steps.length ? "Changed." : "Nothing is different."); for (const [name, value] of Object.entries(changed)) info.settings[name] = value; clear(problem); } catch (error) { clear(problem, failure(error)); }
    } }, h("div", { class: "form" }, Object.entries(info.settings).map(([name, value]) => { inputs[name] = h("input", { value: value ?? "", disabled: !info.may.manage || info.fixed.includes(name) }); return field(name, inputs[name]); })), problem, info.may.manage ? h("button", { class: "main" }, "Save") : null);
    clear(body, form);
  }
  draw(info);
  await open(tab ?? tabs[0][0]);
  const off = listen(({ changed }) => { if (changed[path]) draw(changed[path]); });
  return () => { off(); stop(); };
}
