(() => {
  const plot = document.getElementById("plot");
  const [, , whole, rows] = plot.getAttribute("viewBox").trim().split(/\s+/).map(Number);
  let from = 0, to = whole;
  const show = () => {
    plot.setAttribute("viewBox", `${from} 0 ${to - from} ${rows}`);
    document.getElementById("from").textContent = from.toFixed(1);
    document.getElementById("to").textContent = to.toFixed(1);
  };
  const move = (start, length) => {
    length = Math.min(whole, Math.max(whole / 100000, length));
    from = Math.min(Math.max(0, start), whole - length);
    to = from + length;
    show();
  };
  const at = (event) => from + (to - from) * (event.offsetX / plot.clientWidth);
  plot.addEventListener("wheel", (event) => {
    event.preventDefault();
    const centre = at(event), factor = event.deltaY < 0 ? 0.8 : 1.25;
    move(centre - (centre - from) * factor, (to - from) * factor);
  }, { passive: false });
  plot.addEventListener("pointermove", (event) => {
    if (event.buttons & 1) move(from - (to - from) * event.movementX / plot.clientWidth, to - from);
  });
  plot.addEventListener("dblclick", () => move(0, whole));
  show();
})();
