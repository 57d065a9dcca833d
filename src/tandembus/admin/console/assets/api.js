// The only place that talks to the server.
let token = "";
export const here = { me: null, onSignedOut: () => {} };
async function read(response) {
  let tree = {};
  try { tree = await response.json(); } catch { tree = { error: `The server answered ${response.status}.` }; }
  if (response.status === 401 && here.me) { here.me = null; here.onSignedOut(); }
  if (!response.ok) throw new Error(tree.error ?? `The server answered ${response.status}.`);
  return tree;
}
export async function get(name, query = {}) {
  const said = new URLSearchParams(Object.entries(query).filter(([, v]) => v !== undefined && v !== null && v !== ""));
  return read(await fetch(`api/${name}?${said}`, { credentials: "same-origin", headers: { Accept: "application/json" } }));
}
export async function post(name, body = {}) {
  return read(await fetch(`api/${name}`, {
    method: "POST", credentials: "same-origin",
    headers: { "Content-Type": "application/json", "X-Tandem-Token": token }, body: JSON.stringify(body),
  }));
}
export async function signIn(name, key, namespace) {
  const answer = await post("sign-in", { name, key, namespace });
  if (!answer.choose) introduce(answer);
  return answer;
}
export function introduce(me) { token = me.token; here.me = me; }
export async function signOut() { await post("sign-out").catch(() => {}); here.me = null; token = ""; here.onSignedOut(); }
// Live figures: one stream for the whole page.
const listeners = new Set();
let source = null;
export function listen(listener) { listeners.add(listener); return () => listeners.delete(listener); }
export function openStream() {
  closeStream();
  source = new EventSource("api/events");
  source.onmessage = (event) => { const said = JSON.parse(event.data); for (const each of listeners) each(said); };
}
export function closeStream() { source?.close(); source = null; }
