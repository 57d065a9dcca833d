// Lines over time, drawn as SVG: axes from zero, a few round ticks, nothing else.
import { h, s } from "./dom.js";
const W = 420, H = 170, LEFT = 44, RIGHT = 8, TOP = 8, BOTTOM = 22;
function ticks(most) {
  if (most <= 0) return [0, 1];
  const raw = most / 4, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * size).find((each) => each >= raw);
  const found = [];
  for (let at = 0; at < most + step; at += step) found.push(at);
  return found;
}
const short = (v) => (v >= 1e6 ? `${+(v / 1e6).toFixed(1)}M` : v >= 1e3 ? `${+(v / 1e3).toFixed(1)}k` : String(+v.toFixed(2)));
export function lines(title, samples, series) {
  const box = h("div", { class: "card" }, h("h2", {}, title));
  box.append(h("div", { class: "legend" }, series.map((one) => {
    const mark = h("i"); mark.style.background = `var(${one.color})`;
    return h("span", {}, mark, one.name);
  })));
  if (samples.length < 2) { box.append(h("p", { class: "soft" }, "A chart appears after some seconds.")); return box; }
  const most = Math.max(...samples.flatMap((p) => series.map((one) => one.of(p) ?? 0)));
  const marks = ticks(most), top = marks.at(-1) || 1;
  const from = samples[0].at, to = samples.at(-1).at || from + 1;
  const x = (at) => LEFT + ((at - from) / Math.max(1, to - from)) * (W - LEFT - RIGHT);
  const y = (v) => H - BOTTOM - (v / top) * (H - TOP - BOTTOM);
  const picture = s("svg", { viewBox: `0 0 ${W} ${H}`, class: "chart", role: "img", "aria-label": `${title}, newest: ${series.map((one) => `${one.name} ${short(one.of(samples.at(-1)) ?? 0)}`).join(", ")}` });
  for (const mark of marks) {
    picture.append(s("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(mark), y2: y(mark) }));
    picture.append(s("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, short(mark)));
  }
  for (const share of [0, 0.5, 1]) {
    const at = new Date(from + share * (to - from));
    picture.append(s("text", { x: x(from + share * (to - from)), y: H - 6, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }, at.toLocaleTimeString("en-GB")));
  }
  for (const one of series) {
    const path = samples.map((p, i) => `${i ? "L" : "M"}${x(p.at).toFixed(1)} ${y(one.of(p) ?? 0).toFixed(1)}`).join("");
    const line = s("path", { d: path }); line.style.stroke = `var(${one.color})`;
    picture.append(line);
  }
  box.append(picture);
  return box;
}
// Counters become rates between neighbours.
export function rates(samples, names) {
  const found = [];
  for (let i = 1; i < samples.length; i += 1) {
    const seconds = (samples[i].at - samples[i - 1].at) / 1000;
    if (seconds <= 0) continue;
    const one = { ...samples[i] };
    for (const name of names) one[`${name}_s`] = Math.max(0, samples[i][name] - samples[i - 1][name]) / seconds;
    const commits = samples[i].commits - samples[i - 1].commits;
    one.commit = commits > 0 ? (samples[i].commit_ms - samples[i - 1].commit_ms) / commits : null;
    found.push(one);
  }
  return found;
}
