// Layer: the history of each statistic, the spectrum before and after the last reinit, all reinits.
import * as api from "./api.js";
import { clear, h, number, panel, runLink, time } from "./dom.js";
import { exportButtons, seriesRows } from "./export.js";
import { Lines } from "./lines.js";
import { extent, spacing } from "./scale.js";
import { Table } from "./table.js";
import { verdictTag } from "./view_run.js";

const REFRESH_MS = 2000;
const FIRST = ["dfi", "dormant_ratio", "gradient_norm"]; // the rest by name

const rank = (name) => (FIRST.indexOf(name) + FIRST.length + 1) % (FIRST.length + 1);

/** A statistic with one point is a number, not a history. */
function onceTable() {
    return new Table("Measured once", [
        { key: "statistic", name: "Statistic", value: (one) => one.name },
        { key: "step", name: "Step", number: true, value: (one) => one.steps[0] },
        { key: "value", name: "Value", number: true, value: (one) => one.mean[0],
            cell: (one) => number(one.mean[0]) },
    ]);
}

function reinitTable() {
    const value = (key) => (event) => event.values?.[key];
    const shown = (key) => ({ key, name: key.replaceAll("_", " "), number: true, value: value(key),
        cell: (event) => number(value(key)(event)) });
    return new Table("Reinitialisations", [
        { key: "step", name: "Step", number: true },
        { key: "time", name: "When", wide: true, value: (event) => time(event.time_ms) },
        { key: "preset", name: "Preset", value: (event) => event.attributes?.preset ?? "" },
        { key: "method", name: "Method", wide: true,
            value: (event) => event.attributes?.method ?? "" },
        shown("dfi_before"), shown("dfi_after"),
        { ...shown("sfe"), wide: true }, { ...shown("sfe_relative"), wide: true },
        { ...shown("scale"), wide: true },
        { key: "tenant", name: "Asked by", wide: true,
            value: (event) => event.attributes?.tenant ?? "" },
    ], { empty: "This layer was never reinitialised through fired." });
}

/** Singular values by their place, the largest first. */
function spectrumSeries(event) {
    const one = (name, values, color) => ({ name, color, mean: values,
        steps: values.map((_, i) => i + 1) });
    return [one("before", event.spectrum_before ?? [], 1), one("after",
        event.spectrum_after ?? [], 0)].filter((each) => each.mean.length);
}

class LayerView {
    constructor(root, context, run, layer) {
        Object.assign(this, { root, context, run, layer });
        this.charts = new Map();
        this.box = h("div", { class: "grid" });
        this.spectrumBox = h("div");
        this.table = reinitTable();
        this.once = onceTable();
        this.adviceBox = h("p", { class: "facts" });
        this.domain = null;
        this.series = [];
    }

    build() {
        const name = this.run.info?.name || this.run.run;
        const about = (this.run.layer_list ?? []).find((one) => one.name === this.layer);
        this.root.append(
            h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Fleet"), " / ",
                runLink(this.run.run, name), " / ", this.layer),
            h("h1", {}, this.layer),
            h("p", { class: "facts" }, about?.shape?.length ? `shape ${about.shape.join(" × ")}`
                : "shape unknown"),
            this.adviceBox, this.box, this.spectrumBox, this.table.element, this.once.element);
        this.box.style.marginBottom = "14px";
        this.context.themed(() => this.draw());
    }

    async load() {
        const { signal } = this.context, id = api.run(this.run.run);
        const [answer, events] = await Promise.all([
            api.get(`${id}/query`, { layers: this.layer, aggregate: "all", resolution: 800,
                digits: 6 }, signal),
            api.get("events", { run: this.run.run, layer: this.layer, kind: "reinit",
                digits: 6 }, signal),
        ]);
        const all = answer.series.filter((one) => one.layer === this.layer)
            .map((one) => ({ ...one, name: one.statistic }))
            .sort((a, b) => rank(a.name) - rank(b.name));
        this.series = all.filter((one) => one.steps.length > 1);
        const once = all.filter((one) => one.steps.length === 1);
        this.once.set(once);
        this.once.element.hidden = once.length === 0;
        this.events = (answer.events ?? [])
            .filter((event) => !event.layer || event.layer === this.layer);
        this.space = spacing(this.series, answer.cell_steps);
        this.table.set(events.events);
        this.drawSpectrum(events.events.find((event) => event.spectrum_before?.length));
        this.draw();
    }

    draw() {
        const full = extent(this.series) ?? [0, 1], domain = this.domain ?? full;
        this.full = full;
        for (const one of this.series) {
            let chart = this.charts.get(one.name);
            if (!chart) {
                chart = this.context.keep(new Lines(`${one.name} of ${this.layer} over steps`, {
                    hover: (step) => this.charts.forEach((other) =>
                        other !== chart && other.follow(step)),
                    zoom: (range) => this.zoom(range),
                }, { height: 180, key: false }));
                this.charts.set(one.name, chart);
                this.box.append(panel(one.name, exportButtons(`${this.layer}-${one.name}`,
                    () => seriesRows(chart.series)), chart.element));
            }
            chart.set({ series: [one], domain, events: this.events, space: this.space });
        }
        if (!this.series.length)
            clear(this.box, h("p", { class: "dim" }, "This layer has no points."));
    }

    drawSpectrum(event) {
        if (!event || this.spectrumOf === event.id)
            return;
        this.spectrumOf = event.id;
        const chart = this.context.keep(new Lines(
            "Singular values before and after the last reinitialisation, the largest first", {},
            { height: 200 }));
        const series = spectrumSeries(event);
        chart.stepName = "singular value";
        chart.set({ series, domain: [1, Math.max(2, ...series.map((one) => one.mean.length))] });
        clear(this.spectrumBox, panel(`Spectrum of the reinit at step ${event.step}`,
            exportButtons(`${this.layer}-spectrum`, () => seriesRows(series)), chart.element));
    }

    zoom(range) {
        this.domain = range && [Math.max(this.full[0], range[0]), Math.min(this.full[1], range[1])];
        if (this.domain && this.domain[1] - this.domain[0] < 1)
            this.domain = null;
        this.draw();
    }

    async loadAdvice() {
        try {
            const answer = await api.get(`${api.run(this.run.run)}/advice`,
                { layers: this.layer, digits: 6 }, this.context.signal);
            const advice = answer.layers.find((one) => one.layer === this.layer);
            if (advice)
                clear(this.adviceBox, "Advice: ", verdictTag(advice), " ", advice.reason,
                    advice.preset ? ` Suggested: ${advice.intervention} with preset ` +
                        `${advice.preset}.` : "");
        } catch { /* no advice is no reason to show less */ }
    }

    live() {
        let due = 0;
        this.context.watch({ run: this.run.run }, () => {
            due ||= setTimeout(() => {
                due = 0;
                if (!this.context.signal.aborted)
                    this.load().then(() => this.loadAdvice()).catch(() => {});
            }, REFRESH_MS);
        });
    }
}

export async function show(root, context) {
    const [id = "", layer = ""] = context.parts;
    const run = await api.get(api.run(id), { digits: 6 }, context.signal);
    const view = new LayerView(root, context, run, layer);
    context.title(`${layer} of ${run.info?.name || id}`);
    view.build();
    await view.load();
    view.loadAdvice();
    view.live();
}
