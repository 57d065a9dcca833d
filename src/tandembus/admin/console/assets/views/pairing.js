import { clear, h, n, rate, span, table, toast } from "../dom.js";
import { get, here, listen, post } from "../api.js";
const WORDS = { healthy: "good", timing: "warn", "failed over": "bad", returning: "warn" };
export default async function pairing(main) {
  const pairs = h("div", { id: "pairs" }), backlog = h("div", { class: "card", id: "backlog" });
  main.append(h("div", { class: "head" }, h("h1", {}, "Paired namespaces")), pairs, backlog);
  let previous = new Map();
  async function show() {
    const [{ notes }, { rows }] = await Promise.all([get("board"), get("entities", { search: "/x-servicebus-transfer/", top: 500 })]);
    const mine = notes.filter((each) => each.kind === "pair");
    clear(pairs, mine.length ? mine.map(pair) : h("div", { class: "card soft" }, "No pair reports here. A process that calls tandembus.pairing.console.show_on_console(bus, …) does."));
    const now = Date.now();
    clear(backlog, h("h2", {}, "Backlog queues in this namespace"), table([{ name: "Queue", show: (r) => h("a", { href: `#/entity/${encodeURIComponent(r.path)}` }, r.path) }, { name: "Backlogged", num: true, show: (r) => n(r.active) }, { name: "Not understood", num: true, show: (r) => n(r.dead) }, { name: "Syphoned a second", num: true, show: (r) => { const old = previous.get(r.path); return old ? rate(Math.max(0, (1000 * (r.out - old.out)) / (now - old.at))) : "–"; } }, { name: "Home in", num: true, show: (r) => { const old = previous.get(r.path); const speed = old ? (1000 * (r.out - old.out)) / (now - old.at) : 0; return r.active && speed > 0 ? span((1000 * r.active) / speed) : r.active ? "–" : "empty"; } }], rows, { empty: "This namespace is nobody's secondary." }));
    previous = new Map(rows.map((r) => [r.path, { out: r.out, at: now }]));
  }
  function pair(note) {
    const said = note.said, manages = here.me.rights.includes("Manage");
    const wish = (what, path) => async () => { await post("wish", { kind: "pair", name: note.name, do: what, path }).then(() => toast("Asked: it is done with its next report."), (error) => toast(error.message)); };
    return h("div", { class: "card" }, h("h2", {}, `${said.primary} → ${(said.secondaries ?? []).join(", ")}`), h("p", { class: "soft" }, `${note.name}, said ${span(note.ago_ms)} ago`),
      table([{ name: "Entity", show: (r) => r.path }, { name: "State", show: (r) => h("span", { class: `tag ${WORDS[r.state] ?? ""}` }, r.state) }, { name: "Since", show: (r) => (r.since_ms === undefined ? "" : span(r.since_ms)) }, { name: "To the backlog", num: true, show: (r) => n(r.backlogged) }, { name: "Last error", wide: true, show: (r) => (r.error ?? "").slice(0, 160) }, { name: "", show: (r) => (manages ? h("div", { class: "row" }, h("button", { class: "small", onclick: wish("engage", r.path) }, "Engage"), h("button", { class: "small", onclick: wish("mark_healthy", r.path) }, "Mark healthy")) : null) }], said.entities ?? [], { empty: "It has sent nothing yet." }),
      h("h3", {}, "Operations so far"), h("p", { class: "soft" }, Object.entries(said.cost ?? {}).map(([k, v]) => `${k.replaceAll("_", " ")}: ${n(v)}`).join(" · ") || "none"));
  }
  await show();
  const timer = setInterval(() => show().catch(() => {}), 2000);
  const off = listen(() => {});
  return () => { clearInterval(timer); off(); };
}
