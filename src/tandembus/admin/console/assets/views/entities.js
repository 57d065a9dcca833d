import { bytes, clear, dialog, failure, field, h, n, table, toast } from "../dom.js";
import { get, listen, post } from "../api.js";
const PAGE = 50;
export default async function entities(main) {
  let skip = 0, total = 0;
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search entities", oninput: () => { skip = 0; show(); } });
  const sort = h("select", { "aria-label": "Order", onchange: () => show() }, [["path", "by name"], ["active", "most active"], ["dead", "most dead-lettered"], ["bytes", "largest"]].map(([v, t]) => h("option", { value: v }, t)));
  const list = h("div", { class: "card" }), where = h("span", { class: "soft" });
  const back = h("button", { class: "small", onclick: () => { skip = Math.max(0, skip - PAGE); show(); } }, "Back"), next = h("button", { class: "small", onclick: () => { skip += PAGE; show(); } }, "Next");
  main.append(h("div", { class: "head" }, h("h1", {}, "Entities"), search, sort, h("div", { class: "grow" }), h("button", { class: "main", onclick: () => create(show) }, "New entity")), list, h("div", { class: "row" }, back, next, where));
  async function show() {
    const answer = await get("entities", { search: search.value, sort: sort.value, skip, top: PAGE });
    total = answer.total;
    clear(list, table([
      { name: "Name", id: "path", show: (r) => h("a", { href: `#/entity/${encodeURIComponent(r.path)}` }, r.path) },
      { name: "Kind", show: (r) => h("span", {}, r.kind, " ", r.sessions ? h("span", { class: "tag" }, "sessions") : null, r.levels > 1 ? h("span", { class: "tag" }, `${r.levels} levels`) : null) },
      { name: "Status", show: (r) => h("span", { class: `tag ${r.status === "Active" ? "good" : "warn"}` }, r.status) },
      { name: "Active", id: "active", num: true, show: (r) => n(r.active) }, { name: "Scheduled", id: "scheduled", num: true, show: (r) => n(r.scheduled) },
      { name: "Deferred", id: "deferred", num: true, show: (r) => n(r.deferred) }, { name: "Dead-lettered", id: "dead", num: true, show: (r) => n(r.dead) },
      { name: "Size", id: "bytes", num: true, show: (r) => bytes(r.bytes) }], answer.rows, { key: (r) => r.path, empty: search.value ? "Nothing has such a name." : "There is no entity yet." }));
    where.textContent = total ? `${n(skip + 1)} to ${n(Math.min(skip + PAGE, total))} of ${n(total)}` : "";
    back.disabled = skip === 0;
    next.disabled = skip + PAGE >= total;
  }
  await show();
  return listen(({ changed }) => {
    for (const row of list.querySelectorAll("tr[data-key]")) {
      const now = changed[row.dataset.key];
      if (!now) continue;
      for (const cell of row.querySelectorAll("td[data-name]")) if (cell.dataset.name in now) cell.textContent = cell.dataset.name === "bytes" ? bytes(now.bytes) : n(now[cell.dataset.name]);
      row.classList.remove("changed");
      void row.offsetWidth;
      row.classList.add("changed");
    }
  });
}
function create(done) {
  const kind = h("select", {}, ["queue", "topic", "subscription"].map((k) => h("option", { value: k }, k)));
  const path = h("input", { required: true, placeholder: "orders", autofocus: true }), problem = h("div");
  const settings = h("textarea", { placeholder: "LockDuration = 1m\nRequiresSession = true", "aria-label": "Settings, one a line" });
  const box = dialog("New entity", h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      await post("put-entity", { kind: kind.value, path: path.value.trim(), settings: parse(settings.value) });
      toast(`${path.value} was made.`); box.close(); done();
    } catch (error) { clear(problem, failure(error)); }
  } }, h("div", { class: "form" }, field("Kind", kind), field("Name (a subscription: topic/Subscriptions/name)", path), h("label", { class: "all" }, "Settings that are not the default, one a line", settings)), problem,
  h("div", { class: "row" }, h("button", { class: "main" }, "Make it"), h("button", { type: "button", onclick: () => box.close() }, "Cancel"))));
}
export function parse(text) {
  return Object.fromEntries(text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => { const at = line.indexOf("="); if (at < 0) throw new Error(`"${line}" is not NAME = VALUE.`); return [line.slice(0, at).trim(), line.slice(at + 1).trim()]; }));
}
