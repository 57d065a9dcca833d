// The frame: signing in, the way between pages, the theme.
import { clear, failure, h } from "./dom.js";
import { closeStream, get, here, introduce, openStream, signIn, signOut } from "./api.js";
import overview from "./views/overview.js";
import entities from "./views/entities.js";
import entity from "./views/entity.js";
import priorities from "./views/priorities.js";
import pairing from "./views/pairing.js";
import pipelines from "./views/pipelines.js";

const PAGES = [
  ["overview", "Overview", overview], ["entities", "Entities", entities], ["priorities", "Priorities", priorities],
  ["pairing", "Pairing", pairing], ["pipelines", "Pipelines", pipelines],
];
const root = document.getElementById("root");
let leave = () => {};

function theme(next) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = next ?? localStorage.getItem("theme") ?? system;
  document.documentElement.dataset.theme = now;
  if (next) localStorage.setItem("theme", next);
  return now;
}
function frame() {
  const main = h("main", { id: "main", tabindex: -1 });
  const links = PAGES.map(([id, name]) => h("a", { class: "item", href: `#/${id}`, "data-page": id }, name));
  const side = h("nav", { class: "side", "aria-label": "Pages" },
    h("a", { class: "brand", href: "#/overview" }, h("img", { src: "icon.svg", alt: "" }), "Tandem"), links,
    h("div", { class: "who" }, here.me.namespace, h("br"), here.me.name, h("br"), here.me.rights.join(", ") || "entity rights only", h("br"),
      h("button", { class: "small", onclick: () => theme(theme() === "dark" ? "light" : "dark") }, "Theme"),
      h("button", { class: "small", onclick: signOut }, "Sign out")));
  clear(root, h("div", { class: "frame" }, side, main));
  const show = async () => {
    for (const box of document.querySelectorAll("dialog")) box.close();
    leave();
    leave = () => {};
    const [page = "overview", ...rest] = location.hash.replace(/^#\//, "").split("/");
    const found = page === "entity" ? [page, "Entity", entity] : PAGES.find(([id]) => id === page) ?? PAGES[0];
    for (const link of links) {
      const is = link.dataset.page === (page === "entity" ? "entities" : found[0]);
      if (is) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    document.title = `${found[1]} · ${here.me.namespace} · Tandem`;
    clear(main);
    try { leave = (await found[2](main, rest.map(decodeURIComponent))) ?? (() => {}); } catch (error) { clear(main, failure(error)); }
  };
  window.onhashchange = show;
  openStream();
  show();
}
function signInPage(message = "") {
  closeStream();
  leave();
  window.onhashchange = null;
  const problem = h("div", {}, message ? failure(new Error(message)) : null);
  const name = h("input", { name: "name", autocomplete: "username", value: "RootManageSharedAccessKey", required: true });
  const key = h("input", { name: "key", type: "password", autocomplete: "current-password", required: true });
  const choice = h("select", { hidden: true, "aria-label": "Namespace" });
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      const text = key.value.trim();
      const found = /SharedAccessKey=([^;]+)/.exec(text), who = /SharedAccessKeyName=([^;]+)/.exec(text);
      const answer = await signIn(who ? who[1] : name.value.trim(), found ? found[1] : text, choice.hidden ? undefined : choice.value);
      if (answer.choose) {
        choice.hidden = false;
        clear(choice, answer.choose.map((each) => h("option", { value: each }, each)));
        clear(problem, h("p", { class: "soft" }, "This key opens several namespaces: choose one."));
      } else frame();
    } catch (error) { clear(problem, failure(error)); }
  } },
    h("div", { class: "brand" }, h("img", { src: "icon.svg", alt: "" }), h("h1", {}, "Tandem")),
    h("label", {}, "Policy name", name),
    h("label", {}, "Key, or the whole connection string", key), choice, problem,
    h("button", { class: "main", type: "submit" }, "Sign in"));
  clear(root, h("div", { class: "sign" }, h("main", { id: "main" }, form)));
  key.focus();
}
here.onSignedOut = () => signInPage("You are signed out.");
theme();
get("me").then((me) => { introduce(me); frame(); }, () => signInPage());
