(function () {
  "use strict";
  // What a chart shows under the pointer is read from the table below it: the numbers are on the page once.
  var tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.appendChild(tip);

  function numbers(value) { return value.split(" ").map(Number); }

  function shape(svg, name, kind) {
    var node = document.createElementNS("http://www.w3.org/2000/svg", name);
    node.setAttribute("class", kind);
    node.style.display = "none";
    svg.appendChild(node);
    return node;
  }

  function place(node, values) {
    Object.keys(values).forEach(function (key) { node.setAttribute(key, values[key]); });
    node.style.display = "";
  }

  function tell(event, text) {
    tip.textContent = text;
    tip.hidden = false;
    var box = tip.getBoundingClientRect(), x = event.clientX + 14, y = event.clientY + 14;
    if (x + box.width > innerWidth - 6) { x = event.clientX - box.width - 12; }
    if (y + box.height > innerHeight - 6) { y = event.clientY - box.height - 12; }
    tip.style.left = Math.max(4, x) + "px";
    tip.style.top = Math.max(4, y) + "px";
  }

  document.querySelectorAll("svg[data-hover]").forEach(function (svg) {
    var table = svg.closest("figure").querySelector("table");
    var heads = table.tHead.rows[0].cells, rows = table.tBodies[0].rows;
    var plot = numbers(svg.dataset.plot), cells = svg.dataset.hover === "cells";
    var grid = cells ? numbers(svg.dataset.grid) : null;
    var mark = shape(svg, cells ? "rect" : "line", cells ? "box" : "cross");
    // The drawing's title would pop up over the tooltip: keep it as the name of the picture only.
    var title = svg.querySelector("title");
    svg.setAttribute("aria-label", title.textContent);
    svg.setAttribute("aria-describedby", svg.querySelector("desc").id);
    svg.removeAttribute("aria-labelledby");
    title.remove();

    function hide() { tip.hidden = true; mark.style.display = "none"; }

    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", function (event) {
      var at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      var x = (at.x - plot[0]) / plot[2], y = (at.y - plot[1]) / plot[3];
      var slack = cells ? 0 : 0.02;
      if (x < -slack || x > 1 + slack || y < 0 || y > 1) { hide(); return; }
      if (cells) {
        var row = Math.min(grid[0] - 1, Math.floor(y * grid[0]));
        var column = Math.min(grid[1] - 1, Math.floor(x * grid[1]));
        var wide = plot[2] / grid[1], tall = plot[3] / grid[0];
        place(mark, { x: plot[0] + column * wide, y: plot[1] + row * tall, width: wide, height: tall });
        var names = heads[0].textContent.split(" / ");
        tell(event, names[0] + " " + rows[row].querySelector("bdi").textContent + "\n" + names[1] + " "
          + heads[column + 1].textContent + "\n" + rows[row].cells[column + 1].textContent);
      } else {
        var index = Math.max(0, Math.min(rows.length - 1, Math.round(x * (rows.length - 1))));
        var middle = rows.length > 1 ? plot[0] + plot[2] * index / (rows.length - 1) : plot[0] + plot[2] / 2;
        place(mark, { x1: middle, x2: middle, y1: plot[1], y2: plot[1] + plot[3] });
        var text = heads[0].textContent + " " + rows[index].cells[0].textContent;
        for (var i = 1; i < heads.length; i++) {
          text += "\n" + heads[i].textContent + ": " + rows[index].cells[i].textContent;
        }
        tell(event, text);
      }
    });
  });

  // Pointing at a rule's name or row brings its curve forward.
  var curves = document.querySelectorAll("g[data-series]");
  document.querySelectorAll("[data-series]").forEach(function (node) {
    node.addEventListener("pointerenter", function () {
      curves.forEach(function (curve) {
        curve.classList.toggle("dim", curve.dataset.series !== node.dataset.series);
      });
    });
    node.addEventListener("pointerleave", function () {
      curves.forEach(function (curve) { curve.classList.remove("dim"); });
    });
  });
})();
