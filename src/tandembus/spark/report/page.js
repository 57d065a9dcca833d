"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

  // "@blue" → the blue of the theme, anywhere in a figure.
  const themed = (it) => {
    if (typeof it === "string") return it.startsWith("@") ? color(it.slice(1)) : it;
    if (Array.isArray(it)) return it.map(themed);
    if (it && typeof it === "object")
      return Object.fromEntries(Object.entries(it).map(([key, value]) => [key, themed(value)]));
    return it;
  };

  const axis = (own) => ({
    gridcolor: color("line"), linecolor: color("line"), zeroline: false, tickcolor: color("line"),
    ticks: "", ...own, title: { standoff: 10, font: { size: 12, color: color("soft") }, ...own.title },
  });

  const draw = () =>
    FIGURES.forEach((figure, number) => {
      const { data, layout } = themed(figure);
      const axes = Object.fromEntries(
        Object.entries(layout).filter(([key]) => /^[xy]axis/.test(key)).map(([key, it]) => [key, axis(it)]));
      Plotly.react("figure-" + number, data, {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: color("ink") },
        margin: { l: 64, r: 12, t: 34, b: 46 },
        legend: { orientation: "h", x: 0, y: 1, xanchor: "left", yanchor: "bottom", traceorder: "normal", font: { size: 13 } },
        hoverlabel: { bgcolor: color("paper"), bordercolor: color("line"), font: { color: color("ink") } },
        ...layout, ...axes,
      }, { responsive: true, displayModeBar: false });
    });

  const choose = (theme) => { root.dataset.theme = theme; draw(); };
  document.getElementById("theme").onclick = () =>
    choose(root.dataset.theme === "dark" ? "light" : "dark");
  dark.addEventListener("change", () => choose(dark.matches ? "dark" : "light"));
  choose(dark.matches ? "dark" : "light");
})();
