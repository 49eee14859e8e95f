// What heatmap and lines share: two canvases (picture, and what follows the pointer), sizes in
// device pixels, one redraw a frame, pointer, brush and keys over a range of steps.
import { h } from "./dom.js";
import { css } from "./color.js";
import { linear } from "./scale.js";

const BRUSH_MIN_PX = 6;

export class Chart {
    /** events: hover(step or null, row), zoom([low, high] or null), open(row). */
    constructor(label, handlers = {}) {
        this.handlers = handlers;
        this.picture = h("canvas", { "aria-hidden": "true" });
        this.over = h("canvas", { class: "over", tabindex: 0, role: "img", "aria-label": label });
        this.tip = h("div", { class: "tip", hidden: true });
        this.element = h("div", { class: "chart" }, this.picture, this.over, this.tip);
        this.margin = { left: 54, right: 10, top: 8, bottom: 22 };
        this.domain = [0, 1];
        this.full = [0, 1];
        this.events = [];
        this.cursor = null; // step
        this.row = null;
        this.brush = null; // [from, to] in pixels
        this.width = 0;
        this.pending = new Set();
        this.observer = new ResizeObserver(() => this.resized());
        this.observer.observe(this.element);
        this.listen();
    }

    listen() {
        const over = this.over;
        over.addEventListener("pointermove", (event) => this.pointer(event));
        over.addEventListener("pointerleave", () => this.leave());
        over.addEventListener("pointerdown", (event) => this.press(event));
        over.addEventListener("pointerup", (event) => this.release(event));
        over.addEventListener("pointercancel", () => { this.brush = null; this.redraw("over"); });
        over.addEventListener("dblclick", () => this.handlers.zoom?.(null));
        over.addEventListener("keydown", (event) => this.key(event));
        over.addEventListener("blur", () => this.leave());
    }

    resized() {
        const width = Math.round(this.element.clientWidth);
        if (width && (width !== this.width || this.ratio !== devicePixelRatio)) {
            this.width = width;
            this.redraw("picture");
        }
    }

    /** "picture" draws everything, "over" only what follows the pointer; once a frame. */
    redraw(what) {
        this.pending.add(what);
        this.frame ??= requestAnimationFrame(() => {
            const whole = this.pending.has("picture");
            this.pending.clear();
            this.frame = null;
            if (!this.width)
                return;
            if (whole)
                this.paint();
            this.paintOver();
        });
    }

    context(canvas, height) {
        this.ratio = devicePixelRatio || 1;
        const wide = Math.round(this.width * this.ratio), high = Math.round(height * this.ratio);
        if (canvas.width !== wide || canvas.height !== high) {
            canvas.width = wide;
            canvas.height = high;
            canvas.style.height = `${height}px`;
        }
        const context = canvas.getContext("2d");
        context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
        context.clearRect(0, 0, this.width, height);
        context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
        return context;
    }

    x() {
        return linear(this.domain[0], this.domain[1], this.margin.left,
            this.width - this.margin.right);
    }

    inside(place) {
        return Math.min(Math.max(place, this.margin.left), this.width - this.margin.right);
    }

    stepAxis(context, bottom) {
        const x = this.x();
        context.fillStyle = css("--dim");
        context.strokeStyle = css("--line");
        context.textAlign = "center";
        context.textBaseline = "top";
        for (const tick of x.ticks(Math.max(2, Math.floor(this.width / 110)))) {
            if (!Number.isInteger(tick))
                continue;
            const at = Math.round(x(tick)) + 0.5;
            context.beginPath();
            context.moveTo(at, bottom);
            context.lineTo(at, bottom + 4);
            context.stroke();
            context.fillText(tick.toLocaleString("en"), Math.min(at, this.width - 22), bottom + 6);
        }
    }

    /** Reinitialisations and other events: vertical lines with a dark edge, seen on any colour. */
    eventLines(context, top, bottom) {
        const x = this.x(), drawn = new Set();
        for (const event of this.events) {
            if (event.step < this.domain[0] || event.step > this.domain[1])
                continue;
            const at = Math.round(x(event.step)) + 0.5;
            if (drawn.has(at))
                continue;
            drawn.add(at);
            context.setLineDash(event.kind === "reinit" ? [] : [3, 3]);
            for (const [color, width] of [[css("--ground"), 3], [css("--event"), 1.5]]) {
                context.strokeStyle = color;
                context.lineWidth = width;
                context.beginPath();
                context.moveTo(at, top);
                context.lineTo(at, bottom);
                context.stroke();
            }
        }
        context.setLineDash([]);
        context.lineWidth = 1;
    }

    pointer(event) {
        const box = this.over.getBoundingClientRect();
        const px = event.clientX - box.left, py = event.clientY - box.top;
        if (this.brush) {
            this.brush[1] = this.inside(px);
            this.redraw("over");
            return;
        }
        const within = px >= this.margin.left && px <= this.width - this.margin.right;
        this.point(within ? this.x().invert(px) : null, this.rowAt?.(py) ?? null, px, py);
    }

    point(step, row, px, py) {
        this.cursor = step;
        this.row = row;
        this.place = [px, py];
        this.redraw("over");
        this.handlers.hover?.(step, row);
    }

    /** The cursor of a linked chart: no tip of its own. */
    follow(step) {
        this.cursor = step;
        this.row = null;
        this.place = null;
        this.redraw("over");
    }

    leave() {
        if (!this.brush)
            this.point(null, null, 0, 0);
    }

    press(event) {
        const box = this.over.getBoundingClientRect(), px = event.clientX - box.left;
        if (event.button !== 0 || event.pointerType === "touch")
            return;
        if (px < this.margin.left) {
            const row = this.rowAt?.(event.clientY - box.top);
            if (row !== null && row !== undefined)
                this.handlers.open?.(row);
            return;
        }
        this.brush = [this.inside(px), this.inside(px)];
        this.over.setPointerCapture(event.pointerId);
    }

    release(event) {
        const brush = this.brush;
        this.brush = null;
        if (!brush)
            return;
        const box = this.over.getBoundingClientRect();
        const [low, high] = [...brush].sort((a, b) => a - b);
        if (high - low >= BRUSH_MIN_PX)
            this.handlers.zoom?.([this.x().invert(low), this.x().invert(high)]);
        else
            this.handlers.pick?.(this.rowAt?.(event.clientY - box.top) ?? null);
        this.redraw("over");
    }

    /** Arrows move the cursor, + and - zoom around it, Escape shows everything. */
    key(event) {
        const span = this.domain[1] - this.domain[0];
        const at = this.cursor ?? (this.domain[0] + span / 2);
        const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        const upwards = { ArrowUp: -1, ArrowDown: 1 }[event.key];
        if (sideways) {
            const step = Math.min(this.domain[1], Math.max(this.domain[0],
                at + sideways * span / (event.shiftKey ? 20 : 100)));
            this.point(step, this.row ?? this.firstRow?.() ?? null, this.x()(step), 20);
        } else if (upwards && this.rowCount) {
            const row = Math.min(this.rowCount() - 1, Math.max(0, (this.row ?? -1) + upwards));
            this.point(at, row, this.x()(at), this.rowTop(row));
        } else if (event.key === "+" || event.key === "=") {
            this.handlers.zoom?.([at - span / 4, at + span / 4]);
        } else if (event.key === "-") {
            this.handlers.zoom?.([at - span, at + span]);
        } else if (event.key === "Escape") {
            this.handlers.zoom?.(null);
        } else if (event.key === "Enter" && this.row !== null) {
            this.handlers.open?.(this.row);
        } else {
            return;
        }
        event.preventDefault();
    }

    paintCursor(context, top, bottom) {
        if (this.brush) {
            context.fillStyle = css("--accent");
            context.globalAlpha = 0.25;
            context.fillRect(Math.min(...this.brush), top,
                Math.abs(this.brush[1] - this.brush[0]), bottom - top);
            context.globalAlpha = 1;
        }
        if (this.cursor === null)
            return;
        const at = Math.round(this.x()(this.cursor)) + 0.5;
        context.strokeStyle = css("--text");
        context.setLineDash([2, 2]);
        context.beginPath();
        context.moveTo(at, top);
        context.lineTo(at, bottom);
        context.stroke();
        context.setLineDash([]);
    }

    showTip(text) {
        this.tip.hidden = !text || !this.place;
        if (this.tip.hidden)
            return;
        this.tip.textContent = text;
        const [px, py] = this.place, left = px > this.width / 2;
        this.tip.style.left = left ? "" : `${px + 14}px`;
        this.tip.style.right = left ? `${this.width - px + 14}px` : "";
        this.tip.style.top = `${Math.max(0, py - 10)}px`;
    }

    close() {
        this.observer.disconnect();
        if (this.frame)
            cancelAnimationFrame(this.frame);
    }
}
