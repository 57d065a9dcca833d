import { clear, failure, field, h, table, toast } from "../dom.js";
import { get, post } from "../api.js";
export default async function rules(body, path) {
  const list = h("div", { class: "card" }), name = h("input", { required: true }), filter = h("input", { placeholder: "tier = 'gold' AND amount > 10", size: 40 }), action = h("input", { placeholder: "SET checked = TRUE", size: 30 }), problem = h("div");
  const sample = h("textarea", { id: "sample", value: '{\n  "subject": "order",\n  "properties": {"tier": "gold", "amount": 12}\n}', "aria-label": "A message as JSON" }), trial = h("input", { placeholder: "or a filter that is not there yet", size: 40, "aria-label": "Filter on trial" }), result = h("div", { id: "result" });
  clear(body, list, h("form", { class: "card", onsubmit: async (event) => { event.preventDefault(); try { await post("put-rule", { path, name: name.value, filter: filter.value, action: action.value }); toast("The rule was added."); clear(problem); name.value = filter.value = action.value = ""; show(); } catch (error) { clear(problem, failure(error)); } } }, h("h2", {}, "Add a rule"), h("div", { class: "form" }, field("Name", name), field("SQL filter", filter), field("SQL action", action)), problem, h("button", { class: "main" }, "Add")),
    h("div", { class: "card" }, h("h2", {}, "Try it: which rules take this message?"), sample, h("div", { class: "row" }, trial, h("button", { id: "try", onclick: test }, "Try")), result));
  async function show() {
    const info = await get("entity", { path });
    clear(list, h("h2", {}, "Rules"), table([{ name: "Name", show: (r) => r.name }, { name: "Filter", wide: true, show: (r) => h("span", { class: "mono" }, r.filter) }, { name: "Action", wide: true, show: (r) => h("span", { class: "mono" }, r.action ?? "") }, { name: "", show: (r) => h("button", { class: "small danger", onclick: async () => { await post("delete-rule", { path, name: r.name }).catch((error) => toast(error.message)); show(); } }, "Delete") }], info.rules, { empty: "No rule: no message comes in." }));
  }
  async function test() {
    try {
      const { rules: found } = await post("try-rules", { path, message: JSON.parse(sample.value), ...(trial.value ? { name: "on-trial", filter: trial.value } : {}) });
      clear(result, table([{ name: "Rule", show: (r) => r.name }, { name: "Takes it", show: (r) => h("span", { class: `tag ${r.matches ? "good" : "bad"}` }, r.matches ? "yes" : "no") }, { name: "Why", wide: true, show: (r) => r.why || (r.matches ? (r.changes?.length ? `with ${JSON.stringify(r.changes[0])}` : "the filter is true") : "the filter is false or unknown") }], found));
    } catch (error) { clear(result, failure(error)); }
  }
  await show();
}
