import { clear, h, n, span, table } from "../dom.js";
import { get } from "../api.js";
export default async function pipelines(main) {
  const list = h("div", { class: "card" });
  main.append(h("div", { class: "head" }, h("h1", {}, "Pipelines")), list);
  async function show() {
    const { notes } = await get("board");
    clear(list, table([{ name: "Run", show: (r) => r.name }, { name: "State", show: (r) => h("span", { class: `tag ${r.said.state === "failed" ? "bad" : r.said.state === "done" ? "good" : ""}` }, r.said.state ?? "") }, { name: "Progress", wide: true, show: (r) => progress(r.said) }, { name: "Rows", num: true, show: (r) => n(r.said.rows) }, { name: "Report", wide: true, show: (r) => report(r.said) }, { name: "Said", show: (r) => `${span(r.ago_ms)} ago` }], notes.filter((each) => each.kind === "pipeline"), { empty: "No pipeline reports here. tandem pipeline run --console does." }));
  }
  function progress(said) {
    if (said.share === undefined || said.share === null) return said.text ?? "";
    const bar = h("span"); bar.style.width = `${Math.round(100 * said.share)}%`;
    return h("div", {}, h("div", { class: "meter" }, bar), said.text ?? "");
  }
  function report(said) {
    if (!said.report) return "";
    return h("div", {}, h("code", {}, said.report), h("ul", {}, (said.findings ?? []).map((each) => h("li", {}, each))));
  }
  await show();
  const timer = setInterval(() => show().catch(() => {}), 2000);
  return () => clearInterval(timer);
}
