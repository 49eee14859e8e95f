// Run: layers × steps as a heatmap, lines under it over the same steps, and the layers as a table
// with advice.
import * as api from "./api.js";
import { palette, robustLimits } from "./color.js";
import { ago, clear, count, h, layerLink, number, panel, select } from "./dom.js";
import { exportButtons, seriesRows } from "./export.js";
import { Heatmap } from "./heatmap.js";
import { Lines } from "./lines.js";
import { extent, spacing } from "./scale.js";
import { Table } from "./table.js";

const REFRESH_MS = 2000, TABLE_MS = 60, LINES_MAX = 8, WHOLE_RUN_MAX = 6;
const PREFERRED = ["dfi", "dfi_scale_free", "dormant_ratio", "gradient_norm"];
const VERDICTS = { leave_it: ["good", "leave it"], watch: ["warn", "watch"],
    reinit: ["bad", "reinit"], unknown: ["", "unknown"] };

export function verdictTag(advice) {
    if (!advice)
        return "–";
    const [look, text] = VERDICTS[advice.verdict] ?? ["", advice.verdict];
    return h("span", { class: `tag ${look}`, title: advice.reason }, text);
}

export function named(cells) {
    return cells.map((one) => ({ ...one, name: one.layer || one.statistic }));
}

/** A label for colours: limits, what is hatched, what the lines are. */
function legend() {
    const canvas = h("canvas", { width: 160, height: 12, "aria-hidden": "true" });
    const low = h("span"), high = h("span");
    const context = canvas.getContext("2d");
    for (let x = 0; x < 160; x++) {
        const word = palette[Math.round(x / 159 * 255)];
        context.fillStyle = `rgb(${word & 255} ${word >> 8 & 255} ${word >> 16 & 255})`;
        context.fillRect(x, 0, 1, 12);
    }
    return { element: h("div", { class: "legend" }, low, canvas, high,
        h("span", { class: "gap", "aria-hidden": "true" }), "no value",
        h("span", { class: "mark", "aria-hidden": "true" }), "reinit"),
    set: (limits, log) => {
        low.textContent = `≤ ${number(limits[0])}`;
        high.textContent = `≥ ${number(limits[1])}${log ? " (log)" : ""}`;
    } };
}

class RunView {
    constructor(root, context, run) {
        this.root = root;
        this.context = context;
        this.run = run;
        this.id = run.run;
        this.statistic = this.pick(context.query.get("statistic"));
        this.domain = this.range(context.query);
        this.log = context.query.get("log") ?? "auto";
        this.chosen = new Set(context.query.getAll("layer"));
        this.whole = [];
        this.advice = null;
        this.serial = 0;
    }

    pick(wanted) {
        const all = this.run.statistics;
        return [wanted, ...PREFERRED].find((one) => all.includes(one)) ?? all[0] ?? "";
    }

    range(query) {
        const low = Number(query.get("from")), high = Number(query.get("to"));
        return query.has("to") && high > low && low >= 0 ? [low, high] : null;
    }

    build() {
        const handlers = (self) => ({
            hover: (step) => this.hovered(self(), step),
            zoom: (range) => this.zoom(range),
            open: (row) => this.open(row),
            pick: (row) => this.toggle(row),
        });
        this.heatmap = this.context.keep(new Heatmap("", handlers(() => this.heatmap)));
        this.lines = this.context.keep(new Lines("", handlers(() => this.lines)));
        this.wholeLines = [];
        this.key = legend();
        this.state = h("span", { class: "dim", role: "status" });
        this.reset = h("button", { type: "button", class: "small", hidden: true,
            onclick: () => this.zoom(null) }, "Whole range");
        this.table = new Table("Layers", this.columns(), { empty: "No layer has a value yet." });
        this.wholeBox = h("div", { class: "grid" });
        this.adviceText = h("span", { class: "dim" });
        this.root.append(...this.head(),
            panel("Layers × steps", [this.reset, exportButtons(`${this.id}-heatmap`,
                () => seriesRows(this.series))],
            this.heatmap.element, this.key.element,
            h("p", { class: "dim wide" }, "Drag to zoom; click a row for its line, its name for " +
                "its page. With the keyboard: arrows, + and −, Enter, Escape.")),
            panel("Lines", exportButtons(`${this.id}-lines`, () => seriesRows(this.lines.series)),
                this.lines.element),
            this.wholeBox, this.table.element);
        this.context.themed(() => [this.heatmap, this.lines, ...this.wholeLines]
            .forEach((chart) => { chart.set(chart); }));
    }

    head() {
        const { run } = this, name = run.info?.name || run.run;
        const labels = Object.entries(run.info?.labels ?? {})
            .map(([key, value]) => `${key}=${value}`).join(" ");
        this.facts = h("p", { class: "facts" });
        this.factTexts = { name, labels };
        return [
            h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Fleet"), " / ", name),
            h("h1", {}, name), this.facts,
            h("div", { class: "bar" },
                select("Statistic", run.statistics, this.statistic, (value) => {
                    this.statistic = value;
                    this.context.update({ statistic: value });
                    this.load().catch(this.context.failed);
                }),
                select("Colours", [["auto", "auto"], ["linear", "linear"], ["log", "log"]],
                    this.log, (value) => {
                        this.log = value;
                        this.context.update({ log: value === "auto" ? "" : value });
                        this.draw();
                    }),
                h("a", { href: `#/events?run=${encodeURIComponent(run.run)}` }, "Events"),
                h("a", { href: `#/compare?runs=${encodeURIComponent(run.run)}` }, "Compare"),
                this.state, this.adviceText),
        ];
    }

    columns() {
        const last = (row) => row.values.length ? row.values[row.values.length - 1] : undefined;
        return [
            { key: "layer", name: "Layer", cell: (row) => layerLink(this.id, row.layer) },
            { key: "shape", name: "Shape", wide: true, value: (row) => row.shape.join(" × ") },
            { key: "first", name: "First", number: true, wide: true,
                value: (row) => row.values[0], cell: (row) => number(row.values[0]) },
            { key: "last", name: "Last", number: true, value: last,
                cell: (row) => number(last(row)) },
            { key: "ratio", name: "× start", number: true,
                value: (row) => row.values[0] ? last(row) / row.values[0] : undefined,
                cell: (row) => row.values[0] ? number(last(row) / row.values[0]) : "–" },
            { key: "advice", name: "Advice", value: (row) => row.advice?.verdict ?? "",
                cell: (row) => verdictTag(row.advice) },
            { key: "reason", name: "Why", wide: true, value: (row) => row.advice?.reason ?? "" },
        ];
    }

    /** Cells a series: no more than pixels, and no more than a question may have. */
    resolution() {
        const wide = Math.round((this.root.clientWidth || 1000) * Math.min(devicePixelRatio, 2));
        const fits = Math.floor(600000 / Math.max(1, this.run.layers));
        return Math.max(50, Math.min(1000, wide, fits));
    }

    async load() {
        const serial = ++this.serial, signal = this.context.signal;
        const range = this.domain
            ? { step_min: Math.floor(this.domain[0]), step_max: Math.ceil(this.domain[1]) } : {};
        if (!this.statistic) {
            this.state.textContent = "This run has no points yet.";
            return;
        }
        this.state.textContent = "loading…";
        const wholeAsked = this.loadWhole(range);
        wholeAsked.catch(() => {}); // told below, when it is its turn
        const answer = await api.get(`${api.run(this.id)}/query`, { ...range,
            statistics: this.statistic, resolution: this.resolution(), aggregate: "mean",
            digits: 6 }, signal);
        if (serial !== this.serial || signal.aborted)
            return;
        this.series = named(answer.series);
        this.events = answer.events ?? [];
        this.limits = robustLimits(this.series);
        this.space = spacing(this.series, answer.cell_steps);
        this.draw(); // the heatmap waits for nothing else
        this.whole = await wholeAsked;
        if (serial !== this.serial || signal.aborted)
            return;
        this.state.textContent = "";
        this.draw();
        // The charts come first, the table when they have been drawn.
        setTimeout(() => signal.aborted || this.drawTable(), TABLE_MS);
        this.drawFacts();
    }

    /** Loss and the like: statistics without a layer. There is no question for them alone, so one
     * layer comes along and is left out. */
    async loadWhole(range) {
        const layer = this.run.layer_list?.[0]?.name;
        const answer = await api.get(`${api.run(this.id)}/query`, { ...range, layers: layer,
            whole_run: true, resolution: 600, aggregate: "all", digits: 6 }, this.context.signal);
        return named(answer.series.filter((one) => !one.layer));
    }

    draw() {
        const full = extent([...this.series, ...this.whole]) ?? [0, 1];
        if (!this.domain)
            this.full = full;
        const domain = this.domain ?? full, { space, limits } = this;
        const log = this.log === "log" || (this.log === "auto" && limits[0] > 0 &&
            limits[1] / limits[0] > 50);
        const usable = log && limits[0] > 0;
        const events = this.events;
        this.heatmap.over.setAttribute("aria-label", `${this.statistic} of ${this.series.length} ` +
            `layers over steps ${Math.round(domain[0])} to ${Math.round(domain[1])}; the table ` +
            "below has the values");
        this.heatmap.set({ series: this.series, limits, log: usable, space, domain, events,
            statistic: this.statistic });
        this.key.set(limits, usable);
        this.reset.hidden = !this.domain;
        this.drawLines(domain, space, usable);
        this.drawWhole(domain);
    }

    lineSeries() {
        const chosen = this.series.filter((one) => this.chosen.has(one.name));
        if (chosen.length)
            return chosen.slice(0, LINES_MAX);
        const worst = this.series.find((one) => one.name === this.run.worst_layer);
        const step = Math.max(1, Math.ceil(this.series.length / (LINES_MAX - (worst ? 1 : 0))));
        const rest = this.series.filter((one, i) => i % step === 0 && one !== worst);
        return (worst ? [worst, ...rest] : rest).slice(0, LINES_MAX);
    }

    drawLines(domain, space, log) {
        const series = this.lineSeries();
        this.lines.over.setAttribute("aria-label",
            `${this.statistic} of ${series.map((one) => one.name).join(", ")} as lines`);
        this.lines.set({ series, domain, events: this.events, log, space });
    }

    drawWhole(domain) {
        const shown = this.whole.slice(0, WHOLE_RUN_MAX);
        if (shown.map((one) => one.name).join() !== this.wholeShown) {
            this.wholeShown = shown.map((one) => one.name).join();
            this.wholeLines.forEach((chart) => chart.close());
            this.wholeLines = shown.map((one, i) => this.context.keep(new Lines(
                `${one.name} of the whole run`, {
                    hover: (step) => this.hovered(this.wholeLines[i], step),
                    zoom: (range) => this.zoom(range),
                }, { height: 150, key: false })));
            clear(this.wholeBox, shown.map((one, i) => panel(one.name,
                exportButtons(`${this.id}-${one.name}`, () => seriesRows([this.whole[i]])),
                this.wholeLines[i].element)));
            this.wholeBox.style.marginBottom = shown.length ? "14px" : "0";
        }
        shown.forEach((one, i) => this.wholeLines[i].set({ series: [one], domain,
            events: this.events }));
    }

    drawTable() {
        const advice = new Map((this.advice?.layers ?? []).map((one) => [one.layer, one]));
        const shapes = new Map((this.run.layer_list ?? []).map((one) => [one.name, one.shape]));
        this.table.set(this.series.map((one) => ({ layer: one.name, values: one.mean,
            shape: shapes.get(one.name) ?? [], advice: advice.get(one.name) })));
    }

    drawFacts() {
        const { run } = this, { labels } = this.factTexts;
        clear(this.facts, labels && [h("b", {}, labels), " · "],
            run.info?.framework && `${run.info.framework} · `,
            `${count(run.layers)} layers · step ${count(run.last_step)} · ` +
            `${count(run.points)} points · seen ${ago(run.last_seen_ms)}`,
            run.alerts_firing ? [" · ", h("span", { class: "tag bad" },
                `${run.alerts_firing} alerts firing`)] : null);
    }

    /** The cursor of one chart is that of all. */
    hovered(from, step) {
        for (const chart of [this.heatmap, this.lines, ...this.wholeLines])
            if (chart !== from)
                chart.follow(step);
    }

    /** Draws at once from what is there; finer cells follow. */
    zoom(range) {
        if (range) {
            const [low, high] = this.full;
            range = [Math.max(low, Math.floor(range[0])), Math.min(high, Math.ceil(range[1]))];
            if (range[1] - range[0] < 1 || (range[0] <= low && range[1] >= high))
                range = range[1] - range[0] < 1 ? this.domain : null;
        }
        this.domain = range;
        this.context.update({ from: range ? range[0] : "", to: range ? range[1] : "" });
        this.draw();
        clearTimeout(this.later);
        this.later = setTimeout(() => this.load().catch(this.context.failed), 120);
    }

    open(row) {
        const one = this.series[row];
        if (one)
            location.hash = `#/layer/${encodeURIComponent(this.id)}/${encodeURIComponent(one.name)}`;
    }

    /** A row that is clicked gets, or loses, its line. */
    toggle(row) {
        const one = row === null ? null : this.series[row];
        if (!one)
            return;
        if (!this.chosen.delete(one.name))
            this.chosen.add(one.name);
        this.context.update({ layer: [...this.chosen] });
        this.draw();
    }

    async loadAdvice() {
        try {
            this.advice = await api.get(`${api.run(this.id)}/advice`, { digits: 6 },
                this.context.signal);
            this.adviceText.textContent = this.advice.summary;
            this.drawTable();
        } catch (error) {
            if (error.name !== "AbortError")
                this.adviceText.textContent = "";
        }
    }

    live() {
        let due = 0;
        this.context.watch({ run: this.id }, () => {
            due ||= setTimeout(async () => {
                due = 0;
                if (this.context.signal.aborted)
                    return;
                try {
                    this.run = await api.get(api.run(this.id), { digits: 6 }, this.context.signal);
                    if (!this.statistic)
                        this.statistic = this.pick(null);
                    await this.load();
                    await this.loadAdvice();
                } catch { /* the next message tries again */ }
            }, REFRESH_MS);
        });
    }
}

export async function show(root, context) {
    const id = context.parts[0] ?? "";
    const run = await api.get(api.run(id), { digits: 6 }, context.signal);
    const view = new RunView(root, context, run);
    context.title(run.info?.name || id);
    view.build();
    await view.load();
    view.loadAdvice();
    view.live();
}
