// Lines over steps. More cells than pixels are drawn as the smallest and largest of each pixel
// column, so that no peak is lost; where the daemon sent min and max they make a band.
import { Chart } from "./chart.js";
import { css, lineColor, lineDash } from "./color.js";
import { h, clear, number } from "./dom.js";
import { linear, logarithmic, lowerBound, nearest } from "./scale.js";

export class Lines extends Chart {
    constructor(label, handlers, { height = 220, key = true } = {}) {
        super(label, handlers);
        this.high = height;
        this.series = [];
        this.log = false;
        this.space = Infinity;
        this.key_ = key ? h("div", { class: "key" }) : null;
        this.element.append(...(this.key_ ? [this.key_] : []));
        this.stepName = "step";
    }

    set({ series, domain, events, log, space }) {
        this.series = series.map((one, i) => ({ color: i, ...one }));
        this.domain = domain ?? this.domain;
        this.events = events ?? [];
        this.log = log ?? false;
        this.space = space ?? Infinity;
        if (this.key_)
            clear(this.key_, this.series.map((one) => {
                const swatch = h("i");
                swatch.style.background = lineColor(one.color);
                return h("span", {}, swatch, one.name);
            }));
        this.redraw("picture");
    }

    limits() {
        let low = Infinity, high = -Infinity;
        for (const one of this.series) {
            const from = lowerBound(one.steps, this.domain[0]);
            const to = lowerBound(one.steps, this.domain[1] + 1e-9 + Number.EPSILON) + 1;
            const least = one.min?.length ? one.min : one.mean;
            const most = one.max?.length ? one.max : one.mean;
            for (let i = Math.max(0, from - 1); i < Math.min(to, one.steps.length); i++) {
                if (Number.isFinite(least[i]) && (!this.log || least[i] > 0))
                    low = Math.min(low, least[i]);
                if (Number.isFinite(most[i]))
                    high = Math.max(high, most[i]);
            }
        }
        if (!(low <= high))
            return this.log ? [0.1, 1] : [0, 1];
        if (this.log)
            return high > low ? [low, high] : [low / 2, low * 2];
        const room = 0.05 * (high - low || Math.abs(high) || 1);
        return [low >= 0 && low < 0.3 * high ? 0 : low - room, high + room];
    }

    paint() {
        const context = this.context(this.picture, this.high);
        const { left, right, top, bottom } = this.margin, [low, high] = this.limits();
        const y = (this.log ? logarithmic : linear)(low, high, this.high - bottom, top);
        this.y = y;
        context.strokeStyle = css("--line");
        context.fillStyle = css("--dim");
        context.textAlign = "right";
        context.textBaseline = "middle";
        for (const tick of y.ticks(Math.max(4, this.high / 55))) {
            const at = Math.round(y(tick)) + 0.5;
            context.beginPath();
            context.moveTo(left, at);
            context.lineTo(this.width - right, at);
            context.stroke();
            context.fillText(number(tick), left - 6, at);
        }
        context.save();
        context.beginPath();
        context.rect(left, 0, this.width - left - right, this.high);
        context.clip();
        for (const one of this.series) {
            this.band(context, one, y);
            this.line(context, one, y);
        }
        context.restore();
        this.eventLines(context, top, this.high - bottom);
        this.stepAxis(context, this.high - bottom);
    }

    band(context, one, y) {
        if (!one.min?.length || !one.count?.length)
            return;
        const x = this.x();
        const from = Math.max(0, lowerBound(one.steps, this.domain[0]) - 1);
        const to = Math.min(one.steps.length, lowerBound(one.steps, this.domain[1]) + 1);
        context.beginPath();
        for (let i = from; i < to; i++)
            context.lineTo(x(one.steps[i]), y(one.max[i]));
        for (let i = to - 1; i >= from; i--)
            context.lineTo(x(one.steps[i]), y(one.min[i]));
        context.closePath();
        context.fillStyle = lineColor(one.color);
        context.globalAlpha = 0.18;
        context.fill();
        context.globalAlpha = 1;
    }

    line(context, one, y) {
        const x = this.x(), { steps, mean } = one;
        const from = Math.max(0, lowerBound(steps, this.domain[0]) - 1);
        const to = Math.min(steps.length, lowerBound(steps, this.domain[1]) + 2);
        context.strokeStyle = context.fillStyle = lineColor(one.color);
        context.setLineDash(lineDash(one.color));
        context.lineWidth = 1.5;
        context.beginPath();
        if (to - from > 2 * this.width)
            this.columns(context, one, from, to, x, y);
        else
            for (let i = from, broken = true; i < to; i++) {
                if (!Number.isFinite(mean[i])) {
                    broken = true;
                    continue;
                }
                if (broken || steps[i] - steps[i - 1] > 4 * this.space)
                    context.moveTo(x(steps[i]), y(mean[i]));
                else
                    context.lineTo(x(steps[i]), y(mean[i]));
                broken = false;
            }
        context.stroke();
        context.setLineDash([]);
        context.lineWidth = 1;
        if (to - from <= 1 || (to - from < 40 && this.series.length < 3))
            for (let i = from; i < to; i++)
                context.fillRect(x(steps[i]) - 2, y(mean[i]) - 2, 4, 4);
    }

    /** One vertical stroke a pixel column, from the smallest to the largest. */
    columns(context, one, from, to, x, y) {
        let column = -1, low = 0, high = 0;
        for (let i = from; i < to; i++) {
            const place = Math.floor(x(one.steps[i])), value = one.mean[i];
            if (place !== column) {
                if (column >= 0) {
                    context.lineTo(column, y(low));
                    context.lineTo(column, y(high));
                }
                column = place;
                low = high = value;
            } else {
                low = Math.min(low, value);
                high = Math.max(high, value);
            }
        }
        context.lineTo(column, y(low));
        context.lineTo(column, y(high));
    }

    paintOver() {
        const context = this.context(this.over, this.high);
        this.paintCursor(context, this.margin.top, this.high - this.margin.bottom);
        if (this.cursor === null || !this.y) {
            this.showTip("");
            return;
        }
        const lines = [];
        let step = Math.round(this.cursor);
        for (const one of this.series) {
            const at = nearest(one.steps, this.cursor);
            if (at < 0)
                continue;
            step = one.steps[at];
            context.fillStyle = lineColor(one.color);
            context.fillRect(this.x()(one.steps[at]) - 3, this.y(one.mean[at]) - 3, 6, 6);
            if (lines.length < 12)
                lines.push(`${one.name}: ${number(one.mean[at])}` + (one.count?.length
                    ? ` (${number(one.min[at])} to ${number(one.max[at])})` : ""));
        }
        this.showTip([`${this.stepName} ${step.toLocaleString("en")}`, ...lines].join("\n"));
    }
}
