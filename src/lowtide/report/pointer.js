"use strict";
// What both pictures share: bytes as text, and a box of lines next to the pointer.
const binary = (bytes) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (bytes >= 1024 && index < units.length - 1) { bytes /= 1024; index += 1; }
  return bytes.toFixed(index === 0 ? 0 : bytes < 10 ? 2 : 1) + " " + units[index];
};
const lastNotAbove = (rising, wanted) => {     // index of the last entry at or below what is wanted; at least 0
  let low = 0, high = rising.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (rising[middle] <= wanted) { low = middle; } else { high = middle - 1; }
  }
  return low;
};
const showTip = (tip, event, box, lines) => {  // lines: [tag, text], without the empty ones
  tip.textContent = "";
  lines.filter((line) => line[1]).forEach(([tag, text]) => {
    const node = document.createElement(tag);
    node.textContent = text;
    tip.append(node);
  });
  const x = event.clientX - box.left;
  tip.style.visibility = "visible";
  tip.style.top = "12px";
  tip.style.left = x > box.width / 2 ? "" : x + 16 + "px";
  tip.style.right = x > box.width / 2 ? box.width - x + 16 + "px" : "";
};
