// Mouse, pen and finger on the grid: hovering says what a cell is, a click opens it, dragging selects a range.

import { TOP } from "./paint.js";

// Less than this is a click with an unsteady hand.
const DRAG_PX = 4;

const ordered = (a, b) => [Math.min(a, b), Math.max(a, b)];

export class Pointer {
  constructor() {
    this.to = null; // what the grid's last rendering gave
    this.from = null;
    this.dragging = false;
    for (const name of ["down", "move", "up", "leave"]) this[name] = this[name].bind(this);
  }

  indexAt(event) {
    const { canvas, box, layout, size } = this.to;
    const area = canvas.current.getBoundingClientRect();
    const x = event.clientX - area.left;
    const column = Math.floor((x + box.current.scrollLeft) / size);
    const first = layout.find(column, Math.floor((event.clientY - area.top - TOP) / size));
    const second = first >= 0 && layout.half[first] === 1 && (x + box.current.scrollLeft) % size > size / 2;
    return second ? first + 1 : first;
  }

  down(event) {
    if (event.button !== 0 || event.pointerType === "touch") return;
    const index = this.indexAt(event);
    if (index < 0) return;
    const { anchor, onSelect, setFocus } = this.to;
    if (event.shiftKey && onSelect && anchor.current >= 0) onSelect(ordered(anchor.current, index));
    else {
      this.from = { index, x: event.clientX, y: event.clientY };
      anchor.current = index;
    }
    setFocus(index);
  }

  move(event) {
    const index = this.indexAt(event);
    this.to.setHover(index);
    if (this.from === null || index < 0 || !this.to.onSelect) return;
    this.dragging ||= Math.hypot(event.clientX - this.from.x, event.clientY - this.from.y) > DRAG_PX;
    if (this.dragging) this.to.onSelect(ordered(this.from.index, index));
  }

  up(event) {
    const clicked = this.from !== null && !this.dragging && this.indexAt(event) === this.from.index;
    const touched = event.pointerType === "touch" ? this.indexAt(event) : -1;
    if (clicked) this.to.onOpen?.(this.from.index);
    else if (touched >= 0) this.to.setFocus(touched);
    this.from = null;
    this.dragging = false;
  }

  leave() {
    this.to.setHover(-1);
  }
}
