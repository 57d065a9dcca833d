import { bytes, clear, h, n, rate, span, table } from "../dom.js";
import { get, here, listen } from "../api.js";
import { lines, rates } from "../charts.js";
function figure(name, value, more = "") { return h("div", { class: "card figure" }, h("div", { class: "name" }, name), h("div", { class: "value" }, value), h("div", { class: "more" }, more)); }
export default async function overview(main) {
  const cards = h("div", { class: "cards", id: "figures" }), charts = h("div", { class: "two", id: "charts" }), busiest = h("div");
  main.append(h("div", { class: "head" }, h("h1", {}, here.me.namespace), h("span", { class: "soft" }, "live")), cards, charts, h("div", { class: "card" }, h("h2", {}, "Most waiting"), busiest));
  const { samples } = await get("history");
  const recent = [];
  async function list() {
    const { rows } = await get("entities", { sort: "active", top: 8 });
    clear(busiest, table([
      { name: "Entity", show: (r) => h("a", { href: `#/entity/${encodeURIComponent(r.path)}` }, r.path) },
      { name: "Kind", show: (r) => r.kind }, { name: "Active", num: true, show: (r) => n(r.active) },
      { name: "Scheduled", num: true, show: (r) => n(r.scheduled) }, { name: "Dead-lettered", num: true, show: (r) => n(r.dead) },
      { name: "Size", num: true, show: (r) => bytes(r.bytes) }], rows, { empty: "There is no entity yet: make one under Entities." }));
  }
  function draw(sample) {
    recent.push(sample);
    if (recent.length > 120) recent.shift();
    const now = rates(recent.slice(-4), ["in", "out"]).at(-1) ?? { in_s: 0, out_s: 0, commit: null };
    clear(cards, figure("Incoming / s", rate(now.in_s), `${n(sample.in)} in all`), figure("Outgoing / s", rate(now.out_s), `${n(sample.out)} in all`),
      figure("Waiting", n(sample.active), `${n(sample.scheduled)} scheduled`), figure("Dead-lettered", n(sample.dead), sample.transfer_dead ? `${n(sample.transfer_dead)} not forwarded` : ""),
      figure("Entities", n(sample.entities)), figure("Commit", now.commit === null ? "–" : span(now.commit), "one group"), figure("Messages", bytes(sample.bytes), `${bytes(sample.written)} written`));
    const all = rates([...samples, ...recent], ["in", "out"]);
    clear(charts, lines("Messages a second", all, [{ name: "incoming", color: "--in", of: (p) => p.in_s }, { name: "outgoing", color: "--out", of: (p) => p.out_s }]),
      lines("Messages that wait", all, [{ name: "active", color: "--wait", of: (p) => p.active }, { name: "dead-lettered", color: "--dead", of: (p) => p.dead }]),
      lines("Commit, ms", all.filter((p) => p.commit !== null), [{ name: "one group to disk", color: "--in", of: (p) => p.commit }]));
  }
  if (samples.length) draw(samples.at(-1));
  await list();
  let beat = 0;
  return listen(({ sample }) => { draw(sample); beat += 1; if (beat % 5 === 0) list().catch(() => {}); });
}
