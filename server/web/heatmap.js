// Layers × steps as colours. Each row of cells is resampled to the pixels at hand, so that a zoom
// redraws at once from what is there and again when finer cells have come. What has no point near
// it is hatched, never coloured.
import { Chart } from "./chart.js";
import { css, palette } from "./color.js";
import { number } from "./dom.js";
import { lowerBound } from "./scale.js";

const ROWS_PX = 340, ROW_PX_MIN = 3, ROW_PX_MAX = 22, LABEL_PX = 11;
const GAP = 1.75; // a point stands for so many spacings after it

export class Heatmap extends Chart {
    constructor(label, handlers) {
        super(label, handlers);
        this.series = [];
        this.limits = [0, 1];
        this.log = false;
        this.space = 1;
        this.colours = new WeakMap(); // series -> colours of its cells
    }

    set({ series, limits, log, space, domain, events, statistic }) {
        Object.assign(this, { series, limits, log, space, domain, events, statistic });
        this.redraw("picture");
    }

    rowHeight() {
        return Math.min(ROW_PX_MAX, Math.max(ROW_PX_MIN, ROWS_PX / Math.max(1, this.series.length)));
    }

    height() {
        return this.margin.top + this.margin.bottom +
            Math.max(40, Math.round(this.rowHeight() * this.series.length));
    }

    rowCount() {
        return this.series.length;
    }

    firstRow() {
        return this.series.length ? 0 : null;
    }

    rowTop(row) {
        return this.margin.top + row * this.rowHeight();
    }

    rowAt(py) {
        const row = Math.floor((py - this.margin.top) / this.rowHeight());
        return row >= 0 && row < this.series.length ? row : null;
    }

    /** A function from a value to its colour, with what does not change worked out once. */
    painter() {
        const bend = this.log ? Math.log : (value) => value;
        const low = bend(this.limits[0]), factor = 255 / (bend(this.limits[1]) - low);
        return (value) => {
            const place = (bend(value) - low) * factor;
            return palette[place > 0 ? place < 255 ? Math.round(place) : 255 : 0];
        };
    }

    /** The colour of every cell of a row, 0 where there is no value; kept until the colours mean
     * something else, so that a zoom only moves them. */
    cellColours(one, paint) {
        const key = `${this.limits} ${this.log}`;
        let kept = this.colours.get(one);
        if (kept?.key !== key) {
            kept = { key, words: Uint32Array.from(one.mean, (value) =>
                (Number.isFinite(value) ? paint(value) : 0)) };
            this.colours.set(one, kept);
        }
        return kept.words;
    }

    /** The mean of the cells in each pixel column, or the last one before it if it is near. */
    rowPixels(one, paint, words, from, columns) {
        const [low, high] = this.domain, wide = (high - low) / columns;
        const { steps, mean } = one, reach = this.space * GAP, count = steps.length;
        const colours = this.cellColours(one, paint);
        let at = lowerBound(steps, low);
        for (let column = 0; column < columns; column++) {
            const end = low + (column + 1) * wide;
            let sum = 0, found = 0, last = 0;
            for (; at < count && steps[at] < end; at++) {
                if (colours[at]) {
                    sum += mean[at];
                    found++;
                    last = at;
                }
            }
            if (found)
                words[from + column] = found === 1 ? colours[last] : paint(sum / found);
            else if (at > 0 && end - wide - steps[at - 1] < reach)
                words[from + column] = colours[at - 1];
        }
    }

    paint() {
        const height = this.height();
        this.margin.left = this.width < 560 ? 84 : 150;
        const context = this.context(this.picture, height);
        const columns = Math.max(1, Math.round(
            (this.width - this.margin.left - this.margin.right) * this.ratio));
        const rows = this.series.length, inner = this.rowHeight() * rows;
        const across = this.width - this.margin.left - this.margin.right;
        this.paintMissing(context, across, inner);
        if (rows) {
            this.sheet ??= document.createElement("canvas");
            this.sheet.width = columns;
            this.sheet.height = rows;
            const sheet = this.sheet.getContext("2d");
            const image = sheet.createImageData(columns, rows);
            const words = new Uint32Array(image.data.buffer);
            const paint = this.painter();
            this.series.forEach((one, row) =>
                this.rowPixels(one, paint, words, row * columns, columns));
            sheet.putImageData(image, 0, 0);
            context.imageSmoothingEnabled = false;
            context.drawImage(this.sheet, this.margin.left, this.margin.top, across, inner);
        }
        if (rows && performance.getEntriesByName("first picture").length === 0)
            performance.mark("first picture"); // for deploy/bench page
        this.paintLabels(context);
        this.eventLines(context, this.margin.top, this.margin.top + inner);
        this.stepAxis(context, this.margin.top + Math.max(40, inner));
    }

    paintMissing(context, across, inner) {
        const size = 8;
        const tile = document.createElement("canvas");
        tile.width = tile.height = size;
        const pen = tile.getContext("2d");
        pen.fillStyle = css("--missing");
        pen.fillRect(0, 0, size, size);
        pen.strokeStyle = css("--missing-line");
        pen.beginPath();
        pen.moveTo(0, size);
        pen.lineTo(size, 0);
        pen.stroke();
        context.fillStyle = context.createPattern(tile, "repeat");
        context.fillRect(this.margin.left, this.margin.top, across, inner);
    }

    paintLabels(context) {
        const high = this.rowHeight(), every = Math.max(1, Math.ceil(LABEL_PX / high));
        context.fillStyle = css("--text");
        context.textAlign = "right";
        context.textBaseline = "middle";
        for (let row = 0; row < this.series.length; row += every)
            context.fillText(shorten(context, this.series[row].name, this.margin.left - 10),
                this.margin.left - 6, this.rowTop(row) + Math.max(high, every > 1 ? 4 : high) / 2);
    }

    paintOver() {
        const context = this.context(this.over, this.height());
        const bottom = this.margin.top + this.rowHeight() * this.series.length;
        this.paintCursor(context, this.margin.top, bottom);
        const one = this.row === null ? null : this.series[this.row];
        if (!one) {
            this.showTip("");
            return;
        }
        context.strokeStyle = css("--text");
        context.strokeRect(this.margin.left + 0.5, this.rowTop(this.row) + 0.5,
            this.width - this.margin.left - this.margin.right - 1,
            Math.max(2, this.rowHeight() - 1));
        this.showTip(this.cursor === null ? one.name : this.describe(one));
    }

    describe(one) {
        const wide = (this.domain[1] - this.domain[0]) /
            Math.max(1, this.width - this.margin.left - this.margin.right);
        const at = lowerBound(one.steps, this.cursor + wide / 2) - 1;
        const near = at >= 0 && this.cursor - one.steps[at] < Math.max(this.space * GAP, wide);
        const event = this.events.find((each) => Math.abs(each.step - this.cursor) < 4 * wide);
        return `${one.name}\nstep ${near ? one.steps[at].toLocaleString("en")
            : Math.round(this.cursor).toLocaleString("en")}: ` +
            `${near ? `${this.statistic} ${number(one.mean[at])}` : "no value"}` +
            (event ? `\n${event.text || event.kind}` : "");
    }
}

const widths = new Map(); // text and room -> text that fits

export function shorten(context, text, room) {
    const key = `${room}\n${text}`;
    let short = widths.get(key);
    if (short === undefined) {
        short = text;
        // The end of a layer's name tells it apart from its neighbours.
        while (short.length > 4 && context.measureText(short).width > room)
            short = `…${short.slice(short.length > 24 ? 4 : 2)}`;
        if (widths.size > 4000)
            widths.clear();
        widths.set(key, short);
    }
    return short;
}
