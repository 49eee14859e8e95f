// Compare: one statistic of several runs, by step or counted from an event of each.
import * as api from "./api.js";
import { clear, h, number, panel, runLink, select } from "./dom.js";
import { exportButtons, seriesRows } from "./export.js";
import { Lines } from "./lines.js";
import { extent } from "./scale.js";
import { Table } from "./table.js";

const RUNS_MAX = 8, MEAN = "mean of all layers";

/** The mean over layers: cells of one question have the same grid. */
export function meanOfLayers(cells) {
    const sums = new Map();
    for (const one of cells) {
        one.steps.forEach((step, i) => {
            const sum = sums.get(step) ?? [0, 0];
            sum[0] += one.mean[i];
            sum[1]++;
            sums.set(step, sum);
        });
    }
    const steps = [...sums.keys()].sort((a, b) => a - b);
    return { steps, mean: steps.map((step) => sums.get(step)[0] / sums.get(step)[1]) };
}

async function loadRun(id, statistic, layer, signal) {
    const whole = layer === "" ? undefined : layer === MEAN ? undefined : layer;
    const answer = await api.get(`${api.run(id)}/query`, { statistics: statistic, layers: whole,
        whole_run: true, resolution: 500, aggregate: "mean", digits: 6 }, signal);
    const own = answer.series.filter((one) => one.layer), run = answer.series
        .filter((one) => !one.layer);
    const cells = own.length ? own : run;
    return { id, ...meanOfLayers(cells), events: answer.events ?? [] };
}

class CompareView {
    constructor(root, context) {
        Object.assign(this, { root, context });
        this.ids = [...new Set(context.query.getAll("runs"))].slice(0, RUNS_MAX);
        this.statistic = context.query.get("statistic") ?? "";
        this.layer = context.query.get("layer") ?? MEAN;
        this.align = context.query.get("align") ?? "step";
        this.relative = context.query.get("relative") === "true";
        this.bar = h("div", { class: "bar" });
        this.state = h("p", { class: "dim", role: "status" });
        this.chart = context.keep(new Lines("", { zoom: (range) => this.zoom(range) },
            { height: 380 }));
        this.domain = null;
        this.table = new Table("Runs compared", [
            { key: "run", name: "Run", value: (row) => row.id,
                cell: (row) => runLink(row.id, row.name) },
            { key: "first", name: "First", number: true, value: (row) => row.mean[0],
                cell: (row) => number(row.mean[0]) },
            { key: "last", name: "Last", number: true, value: (row) => row.mean.at(-1),
                cell: (row) => number(row.mean.at(-1)) },
            { key: "most", name: "Most", number: true, wide: true,
                value: (row) => row.mean.length ? Math.max(...row.mean) : undefined,
                cell: (row) => number(row.mean.length ? Math.max(...row.mean) : undefined) },
            { key: "origin", name: "Counted from", number: true,
                value: (row) => row.origin },
            { key: "remove", name: "", fixed: true, cell: (row) => h("button", { type: "button",
                class: "small", "aria-label": `Remove ${row.name}`,
                onclick: () => this.setRuns(this.ids.filter((id) => id !== row.id)) },
            "Remove") },
        ], { empty: "Choose two or more runs." });
    }

    async start() {
        const { signal } = this.context;
        this.known = (await api.get("runs", { limit: 200, digits: 6 }, signal)).runs;
        this.root.append(h("h1", {}, "Compare"), this.bar, this.state,
            panel("Runs over steps", exportButtons("compare", () => seriesRows(this.drawn ?? [])),
                this.chart.element), this.table.element);
        this.context.themed(() => this.draw());
        await this.load();
    }

    name(id) {
        return this.known.find((run) => run.run === id)?.info?.name || id;
    }

    setRuns(ids) {
        this.ids = ids.slice(0, RUNS_MAX);
        this.context.update({ runs: this.ids });
        this.load().catch(this.context.failed);
    }

    change(name, value, reload) {
        this[name] = value;
        this.domain = null;
        this.context.update({ [name]: value });
        if (reload)
            this.load().catch(this.context.failed);
        else
            this.draw();
    }

    drawBar() {
        const rest = this.known.filter((run) => !this.ids.includes(run.run));
        const events = Math.max(0, ...this.runs.map((run) => this.reinits(run).length));
        const relative = h("input", { type: "checkbox", checked: this.relative,
            onchange: () => this.change("relative", relative.checked, false) });
        clear(this.bar,
            select("Add a run", [["", "choose…"], ...rest.map((run) => [run.run,
                run.info?.name || run.run])], "", (id) => id && this.setRuns([...this.ids, id])),
            this.statistics.length ? select("Statistic", this.statistics, this.statistic,
                (value) => this.change("statistic", value, true)) : null,
            this.layers.length ? select("Layer", [MEAN, ...this.layers], this.layer,
                (value) => this.change("layer", value, true)) : null,
            select("Aligned by", [["step", "step"], ...Array.from({ length: Math.min(events, 9) },
                (_, i) => [`event${i + 1}`, `reinit ${i + 1}`])],
            this.align, (value) => this.change("align", value, false)),
            h("label", { class: "inline" }, relative, "relative to the first value"));
    }

    reinits(run) {
        const steps = run.events.filter((event) => event.kind === "reinit")
            .map((event) => event.step);
        return [...new Set(steps)].sort((a, b) => a - b);
    }

    async load() {
        const { signal } = this.context;
        this.state.textContent = this.ids.length ? "loading…" : "Choose runs to compare.";
        const about = await Promise.all(this.ids.map((id) =>
            api.get(api.run(id), { digits: 6 }, signal)));
        this.statistics = [...new Set(about.flatMap((run) => run.statistics))].sort();
        this.layers = [...new Set(about.flatMap((run) =>
            (run.layer_list ?? []).map((layer) => layer.name)))];
        if (!this.statistics.includes(this.statistic))
            this.statistic = this.statistics.includes("dfi") ? "dfi" : this.statistics[0] ?? "";
        if (!this.layers.includes(this.layer))
            this.layer = MEAN;
        this.runs = await Promise.all(this.ids.map((id) =>
            loadRun(id, this.statistic, this.layer, signal).catch((error) => {
                if (error.status === 404 || error.status === 400)
                    return { id, steps: [], mean: [], events: [] };
                throw error;
            })));
        this.state.textContent = this.ids.length ? "" : "Choose runs to compare.";
        this.drawBar();
        this.draw();
    }

    origin(run) {
        if (this.align === "step")
            return 0;
        return this.reinits(run)[Number(this.align.slice(5)) - 1];
    }

    draw() {
        const rows = this.runs.map((run, i) => {
            const origin = this.origin(run), first = run.mean.find((value) => value !== 0) ?? 1;
            return { ...run, color: i, origin, name: this.name(run.id),
                steps: origin === undefined ? [] : run.steps.map((step) => step - origin),
                mean: this.relative ? run.mean.map((value) => value / first) : run.mean };
        });
        this.drawn = rows.filter((row) => row.origin !== undefined);
        this.full = extent(this.drawn) ?? [0, 1];
        this.chart.stepName = this.align === "step" ? "step" : "steps after the reinit";
        this.chart.over.setAttribute("aria-label", `${this.statistic} of ` +
            `${this.drawn.map((row) => row.name).join(", ") || "no run"}; the table below has ` +
            "first and last values");
        this.chart.set({ series: this.drawn, domain: this.domain ?? this.full,
            events: this.align === "step" ? [] : [{ step: 0, kind: "reinit" }] });
        this.table.set(rows);
    }

    zoom(range) {
        this.domain = range && range[1] - range[0] >= 1 ? [Math.max(this.full[0], range[0]),
            Math.min(this.full[1], range[1])] : null;
        this.draw();
    }
}

export async function show(root, context) {
    context.title("Compare");
    await new CompareView(root, context).start();
}
