"use strict";
// Two things only: names under the pointer on the curve, and columns that sort. The page reads well without both.
(function () {
  const data = JSON.parse(document.getElementById("curve").textContent);
  const svg = document.getElementById("memory"), tip = document.getElementById("tip");
  const cursor = document.getElementById("cursor");
  const binary = (bytes) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let index = 0;
    while (bytes >= 1024 && index < units.length - 1) { bytes /= 1024; index += 1; }
    return bytes.toFixed(index === 0 ? 0 : bytes < 10 ? 2 : 1) + " " + units[index];
  };
  const find = (ms) => {                       // the last step that starts at or before ms
    let low = 0, high = data.start_ms.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (data.start_ms[middle] <= ms) { low = middle; } else { high = middle - 1; }
    }
    return low;
  };
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * data.width / box.width;
    const ms = (x - data.left) / (data.right - data.left) * data.span_ms;
    if (ms < 0 || ms > data.span_ms || data.start_ms.length === 0) { hide(); return; }
    const at = find(ms);
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.style.visibility = "visible";
    tip.textContent = "";
    const add = (tag, text) => { const node = document.createElement(tag); node.textContent = text; tip.append(node); };
    add("b", data.label[at] + (data.again[at] ? " (again)" : ""));
    add("div", "step " + data.step[at] + " at " + data.start_ms[at].toFixed(2) + " ms, peak " + binary(data.peak_B[at]));
    if (data.place[at]) { add("code", data.place[at]); }
    const px = event.clientX - box.left;
    tip.style.visibility = "visible";
    tip.style.top = "12px";
    tip.style.left = px > box.width / 2 ? "" : px + 16 + "px";
    tip.style.right = px > box.width / 2 ? box.width - px + 16 + "px" : "";
  });
  function hide() { tip.style.visibility = "hidden"; cursor.style.visibility = "hidden"; }
  svg.addEventListener("mouseleave", hide);
  document.querySelectorAll("th.sorts").forEach((head) => {
    let rising = true;
    head.addEventListener("click", () => {
      const body = head.closest("table").tBodies[0], column = head.cellIndex, numeric = "number" in head.dataset;
      const key = (row) => { const cell = row.cells[column]; return cell.dataset.key || cell.textContent; };
      const rows = Array.from(body.rows).sort((a, b) =>
        numeric ? Number(key(a)) - Number(key(b)) : key(a).localeCompare(key(b)));
      (rising ? rows : rows.reverse()).forEach((row) => body.append(row));
      rising = !rising;
    });
  });
})();
