// Two things only: names under the pointer on the curve, and columns that sort. The page reads well without both.
(function () {
  const data = JSON.parse(document.getElementById("curve").textContent);
  const svg = document.getElementById("memory"), tip = document.getElementById("tip");
  const cursor = document.getElementById("cursor");
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * data.width / box.width;
    const ms = (x - data.left) / (data.right - data.left) * data.span_ms;
    if (ms < 0 || ms > data.span_ms || data.start_ms.length === 0) { hide(); return; }
    const at = lastNotAbove(data.start_ms, ms);
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.style.visibility = "visible";
    showTip(tip, event, box, [
      ["b", data.label[at] + (data.again[at] ? " (again)" : "")],
      ["div", "step " + data.step[at] + " at " + data.start_ms[at].toFixed(2) + " ms, peak " + binary(data.peak_B[at])],
      ["code", data.place[at]],
    ]);
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
