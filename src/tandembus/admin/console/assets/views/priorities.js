import { clear, h, n, span, table } from "../dom.js";
import { get } from "../api.js";
const edge = (s) => (s < 60 ? `${s} s` : s < 3600 ? `${s / 60} min` : `${s / 3600} h`);
export default async function priorities(main) {
  const strips = h("div", { id: "strips" }), pools = h("div", { class: "card", id: "pools" });
  main.append(h("div", { class: "head" }, h("h1", {}, "Priorities")), strips, pools);
  async function show() {
    const { rows } = await get("entities", { top: 500 });
    const with_levels = rows.filter((r) => r.levels > 1);
    const found = await Promise.all(with_levels.slice(0, 12).map((r) => get("levels", { path: r.path })));
    clear(strips, found.length ? found.map(strip) : h("div", { class: "card soft" }, "No queue has levels yet: give one the setting PriorityLevels."));
    const { notes } = await get("board");
    const mine = notes.filter((each) => each.kind === "pool").flatMap((note) => (note.said.levels ?? []).map((level) => ({ ...level, note })));
    clear(pools, h("h2", {}, "Pools of workers"), table([{ name: "Pool", show: (r) => r.note.name }, { name: "Busy", num: true, show: (r) => `${n(r.note.said.busy)} of ${n(r.note.said.size)}` }, { name: "Level", show: (r) => `${r.name} (${r.path})` }, { name: "Waiting", num: true, show: (r) => (r.waiting === null ? "–" : n(r.waiting)) }, { name: "Oldest", num: true, show: (r) => (r.oldest_s ? span(1000 * r.oldest_s) : "–") }, { name: "A second", num: true, show: (r) => (r.rate ?? 0).toFixed(1) }, { name: "p99 of the wait", num: true, show: (r) => (r.p99_s === null ? "–" : span(1000 * r.p99_s)) }, { name: "Target attained", show: (r) => (r.percent === null || r.percent === undefined ? "–" : h("span", { class: `tag ${r.is_attained ? "good" : "bad"}` }, `${r.percent.toFixed(1)} %`)) }, { name: "Said", show: (r) => `${span(r.note.ago_ms)} ago` }], mine, { empty: "No pool reports here. tandem workers run --console does." }));
  }
  function strip(one) {
    const most = Math.max(1, ...one.levels.flatMap((l) => l.heat));
    const grid = h("div", { class: "heat" });
    grid.style.gridTemplateColumns = `70px 80px repeat(${one.ages_s.length + 1}, 1fr)`;
    grid.append(h("span", { class: "name" }, "level"), h("span", { class: "name" }, "waiting"), ...["new", ...one.ages_s.map((s) => `> ${edge(s)}`)].map((t) => h("span", { class: "name" }, t)));
    for (const level of one.levels) {
      grid.append(h("span", { class: "name" }, String(level.level)), h("span", {}, n(level.waiting)));
      for (const count of level.heat) { const cell = h("div", { class: "cell" }, count ? n(count) : ""); if (count) cell.style.background = `color-mix(in srgb, var(--wait) ${Math.round(8 + (26 * count) / most)}%, var(--bg))`; grid.append(cell); }
    }
    return h("div", { class: "card" }, h("h2", {}, h("a", { href: `#/entity/${encodeURIComponent(one.path)}` }, one.path)), h("p", { class: "soft" }, "Waiting messages by level and age; the highest level is served first."), grid);
  }
  await show();
  const timer = setInterval(() => show().catch(() => {}), 2000);
  return () => clearInterval(timer);
}
