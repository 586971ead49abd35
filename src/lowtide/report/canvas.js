// Rectangles in (time, address): drawn whole at every change, which takes milliseconds for tens of thousands.
(function () {
  const data = JSON.parse(document.getElementById("rectangles").textContent);
  const canvas = document.getElementById("addresses"), tip = document.getElementById("who");
  const pen = canvas.getContext("2d"), count = data.start.length;
  const WIDTH = 1100, HEIGHT = 460, LEFT = 70, RIGHT = 1085, TOP = 12, BOTTOM = 430;  // as wide as the curve above
  const msAt = (tick) => {
    const ticks = data.clock_tick, at = lastNotAbove(ticks, tick), next = Math.min(at + 1, ticks.length - 1);
    const share = next > at ? (tick - ticks[at]) / (ticks[next] - ticks[at]) : 0;
    return data.clock_ms[at] + share * (data.clock_ms[next] - data.clock_ms[at]);
  };
  const axes = {                               // left and right end of every rectangle, and where the axis ends
    time: { from: data.start.map(msAt), to: data.stop.map(msAt), end: data.span_ms },
    events: { from: data.start, to: data.stop, end: data.ticks },
  };
  let across = "time", view, drag = null, shown = -1;
  const whole = () => { view = { x0: 0, x1: axes[across].end || 1, y0: 0, y1: data.top_B * 1.04 || 1 }; };
  const px = (x) => LEFT + (x - view.x0) / (view.x1 - view.x0) * (RIGHT - LEFT);
  const py = (y) => BOTTOM - (y - view.y0) / (view.y1 - view.y0) * (BOTTOM - TOP);
  const x = (p) => view.x0 + (p - LEFT) / (RIGHT - LEFT) * (view.x1 - view.x0);
  const y = (p) => view.y0 + (BOTTOM - p) / (BOTTOM - TOP) * (view.y1 - view.y0);

  function corners(i) {                        // at least as wide and high as can be seen
    const left = px(axes[across].from[i]), bottom = py(data.offset_B[i]);
    const width = Math.max(0.7, px(axes[across].to[i]) - left);
    const height = Math.max(0.7, bottom - py(data.offset_B[i] + data.size_B[i]));
    return [left, bottom - height, width, height];
  }
  function draw(marked) {
    shown = marked;
    const scale = window.devicePixelRatio || 1, style = getComputedStyle(document.documentElement);
    const ink = (name) => style.getPropertyValue("--" + name).trim();
    const wide = Math.round(WIDTH * scale);
    if (canvas.width !== wide) { canvas.width = wide; canvas.height = Math.round(HEIGHT * scale); }
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, WIDTH, HEIGHT);
    pen.save();
    pen.beginPath(); pen.rect(LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP); pen.clip();
    const colours = data.kinds.map(ink), page = ink("page");
    pen.lineWidth = 0.5;
    for (let i = 0; i < count; i += 1) {
      const [left, top, width, height] = corners(i);
      if (left > RIGHT || left + width < LEFT || top > BOTTOM || top + height < TOP) { continue; }
      pen.fillStyle = colours[data.kind[i]];
      pen.fillRect(left, top, width, height);
      if (width > 3 && height > 3) { pen.strokeStyle = page; pen.strokeRect(left, top, width, height); }
    }
    if (marked >= 0) { pen.strokeStyle = ink("ink"); pen.lineWidth = 1.5; pen.strokeRect(...corners(marked)); }
    pen.strokeStyle = ink("budget"); pen.lineWidth = 1.6; pen.setLineDash([7, 4]);
    pen.beginPath(); pen.moveTo(LEFT, py(data.budget_B)); pen.lineTo(RIGHT, py(data.budget_B)); pen.stroke();
    pen.fillStyle = ink("budget"); pen.font = "600 11px system-ui, sans-serif"; pen.textAlign = "right";
    pen.fillText("budget " + binary(data.budget_B), RIGHT - 4, py(data.budget_B) - 5);
    if (drag && drag.to) {
      pen.setLineDash([3, 3]); pen.strokeStyle = ink("ink"); pen.lineWidth = 1;
      pen.strokeRect(drag.from[0], drag.from[1], drag.to[0] - drag.from[0], drag.to[1] - drag.from[1]);
    }
    pen.restore();
    pen.fillStyle = ink("dim"); pen.font = "11px system-ui, sans-serif";
    for (let fifth = 0; fifth <= 5; fifth += 1) {
      const at = fifth / 5, value = view.x0 + at * (view.x1 - view.x0);
      pen.textAlign = "right";
      pen.fillText(binary(view.y0 + at * (view.y1 - view.y0)), LEFT - 6, BOTTOM + 4 - at * (BOTTOM - TOP));
      pen.textAlign = fifth === 5 ? "right" : "center";
      const told = across === "time" ? Number(value.toPrecision(4)) + " ms" : String(Math.round(value));
      pen.fillText(told, LEFT + at * (RIGHT - LEFT), BOTTOM + 19);
    }
  }
  function point(event) {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * WIDTH / box.width, (event.clientY - box.top) * HEIGHT / box.height];
  }
  function under(p, q) {                       // the rectangle at a point; thin ones are a pixel wide
    for (let i = count - 1; i >= 0; i -= 1) {
      const [left, top, width, height] = corners(i);
      if (p >= left && p <= left + width && q >= top && q <= top + height) { return i; }
    }
    return -1;
  }
  function tell(event, i) {
    const text = (column) => data.texts[data[column][i]];
    const stays = data.step[i] < 0 ? "throughout" : "ticks " + data.start[i] + " to " + data.stop[i] + ", " +
      axes.time.from[i].toFixed(3) + " to " + axes.time.to[i].toFixed(3) + " ms, from step " + data.step[i];
    const where = data.step[i] < 0 && data.offset_B[i] >= data.height_B ? "" : " at address " + data.offset_B[i];
    showTip(tip, event, canvas.getBoundingClientRect(), [
      ["b", text("name") || "temporary"],
      ["div", text("op")],
      ["div", binary(data.size_B[i]) + " (" + data.size_B[i] + " B)" + where],
      ["div", stays],
      ["code", text("place")],
    ]);
  }
  function hide() { tip.style.visibility = "hidden"; if (drag || shown >= 0) { drag = null; draw(-1); } }
  canvas.addEventListener("mousedown", (event) => { drag = { from: point(event), to: null }; event.preventDefault(); });
  canvas.addEventListener("mousemove", (event) => {
    const [p, q] = point(event);
    if (drag) { drag.to = [p, q]; tip.style.visibility = "hidden"; draw(-1); return; }
    const i = p < LEFT || p > RIGHT || q < TOP || q > BOTTOM ? -1 : under(p, q);
    if (i < 0) { hide(); return; }
    if (i !== shown) { draw(i); }
    tell(event, i);
  });
  canvas.addEventListener("mouseup", () => {
    const chosen = drag;
    drag = null;
    if (chosen && chosen.to && Math.abs(chosen.to[0] - chosen.from[0]) > 4 && Math.abs(chosen.to[1] - chosen.from[1]) > 4) {
      const xs = [x(chosen.from[0]), x(chosen.to[0])].sort((a, b) => a - b);
      const ys = [y(chosen.from[1]), y(chosen.to[1])].sort((a, b) => a - b);
      view = { x0: Math.max(0, xs[0]), x1: xs[1], y0: Math.max(0, ys[0]), y1: ys[1] };
    }
    draw(-1);
  });
  canvas.addEventListener("mouseleave", hide);
  canvas.addEventListener("dblclick", () => { whole(); draw(-1); });
  document.querySelectorAll("input[name=across]").forEach((choice) => {
    choice.addEventListener("change", () => { across = choice.value; whole(); draw(-1); });
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(-1));
  whole();
  draw(-1);
})();
