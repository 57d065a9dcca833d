// Elements from text nodes only: nothing that a message or a name says is ever read as markup.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(9).filter((c) => c !== null && c !== undefined && c !== false).map(node));
  return element;
}
const node = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));
const SVG = "http://www.w3.org/2000/svg";
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children.map(node));
  return element;
}
export const clear = (element, ...children) => {
  element.replaceChildren(...children.flat(9).filter(Boolean).map(node));
  return element;
};
const whole = new Intl.NumberFormat("en");
export const n = (value) => whole.format(value ?? 0);
export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${at ? value.toFixed(1) : value} ${units[at]}`;
}
export function span(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1000)} s`;
  if (ms < 86_400_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  return `${(ms / 86_400_000).toFixed(1)} d`;
}
export function rate(value) { return value >= 100 ? n(Math.round(value)) : value.toFixed(value >= 10 ? 1 : 2); }
export function toast(text) {
  const note = h("div", {}, text);
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), 4000);
}
export function failure(error) { return h("div", { class: "error", role: "alert" }, error.message ?? String(error)); }
export function table(columns, rows, { key, empty = "Nothing here." } = {}) {
  if (!rows.length) return h("p", { class: "soft" }, empty);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map((c) => h("th", { scope: "col", class: c.num ? "num" : null }, c.name)))),
    h("tbody", {}, rows.map((row) => h("tr", { "data-key": key ? key(row) : null },
      columns.map((c) => h("td", { class: c.num ? "num" : c.wide ? "wide" : null, "data-name": c.id }, c.show(row))))))));
}
export function dialog(title, ...content) {
  const box = h("dialog", { "aria-label": title }, h("h2", {}, title), content);
  document.body.append(box);
  box.addEventListener("close", () => box.remove());
  box.showModal();
  return box;
}
export function confirmed(question, word) {
  return new Promise((resolve) => {
    const box = dialog(question, h("div", { class: "row" },
      h("button", { class: "danger", onclick: () => { resolve(true); box.close(); } }, word),
      h("button", { autofocus: true, onclick: () => box.close() }, "Cancel")));
    box.addEventListener("close", () => resolve(false));
  });
}
export function field(name, input) { return h("label", {}, name, input); }
