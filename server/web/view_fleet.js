// Fleet: every run of the tenant, those seen last first.
import * as api from "./api.js";
import { ago, count, h, layerLink, number, runLink, spark, time } from "./dom.js";
import { Table } from "./table.js";

const FILTER_MS = 250, REFRESH_MS = 1500;

function growth(run) {
    const known = run.spark.filter(Number.isFinite);
    return known.length > 1 && known[0] > 0 ? known[known.length - 1] / known[0] : undefined;
}

function columns(chosen, changed) {
    return [
        { key: "compare", name: "", fixed: true, cell: (run) => h("input", {
            type: "checkbox", checked: chosen.has(run.run),
            "aria-label": `Compare ${run.info?.name || run.run}`,
            onchange: (event) => {
                chosen[event.target.checked ? "add" : "delete"](run.run);
                changed();
            } }) },
        { key: "run", name: "Run", cell: (run) => [runLink(run.run, run.info?.name),
            run.info?.name && run.info.name !== run.run
                ? h("div", { class: "dim" }, run.run) : null] },
        { key: "labels", name: "Labels", wide: true, value: (run) =>
            Object.entries(run.info?.labels ?? {}).map(([key, value]) => `${key}=${value}`)
                .join(" ") },
        { key: "framework", name: "From", wide: true, value: (run) => run.info?.framework ?? "" },
        { key: "layers", name: "Layers", number: true, wide: true,
            cell: (run) => count(run.layers) },
        { key: "last_step", name: "Step", number: true, cell: (run) => count(run.last_step) },
        { key: "growth", name: "DfI", value: growth, tight: true, cell: (run) =>
            spark(run.spark, growth(run) === undefined ? "no DfI"
                : `DfI ${number(growth(run))} times its start`) },
        { key: "worst_layer", name: "Worst layer", wide: true, cell: (run) => run.worst_layer
            ? layerLink(run.run, run.worst_layer) : "–" },
        { key: "last_event", name: "Last event", wide: true,
            value: (run) => run.last_event?.text ?? "",
            cell: (run) => run.last_event ? [run.last_event.text || run.last_event.kind,
                h("div", { class: "dim" }, ago(run.last_event.time_ms))] : "–" },
        { key: "alerts_firing", name: "Alerts", cell: (run) => run.alerts_firing
            ? h("span", { class: "tag bad" }, `${run.alerts_firing} firing`)
            : h("span", { class: "dim" }, "none") },
        { key: "last_seen_ms", name: "Seen", tight: true, cell: (run) =>
            h("span", { title: time(run.last_seen_ms) }, ago(run.last_seen_ms)) },
    ];
}

export async function show(root, context) {
    const chosen = new Set(), summary = h("p", { class: "facts", role: "status" });
    const compareButton = h("button", { type: "button", disabled: true, onclick: () => {
        const runs = [...chosen].map((run) => `runs=${encodeURIComponent(run)}`).join("&");
        location.hash = `#/compare?${runs}`;
    } }, "Compare chosen");
    const table = new Table("Runs",
        columns(chosen, () => { compareButton.disabled = chosen.size < 2; }),
        { empty: "No run is here yet. A run appears with its first Report, or with a Reinit that " +
            "names it." });
    const more = h("button", { type: "button", hidden: true, onclick: () => load(true) }, "More");
    let next = "", timer = 0, filter = context.query.get("filter") ?? "";

    async function load(further) {
        const answer = await api.get("runs", { filter, limit: 200, page: further ? next : "",
            digits: 6 }, context.signal);
        next = answer.next;
        more.hidden = !next;
        table.set(further ? [...table.rows, ...answer.runs] : answer.runs);
        const firing = table.rows.filter((run) => run.alerts_firing).length;
        summary.textContent = `${count(table.rows.length)}${next ? " or more" : ""} runs` +
            (firing ? `, ${firing} with an alert` : "") + (filter ? ` that match “${filter}”` : "");
    }

    const input = h("input", { type: "search", value: filter, placeholder: "name, id or label",
        oninput: () => {
            clearTimeout(timer);
            timer = setTimeout(() => {
                filter = input.value;
                context.update({ filter });
                load(false).catch(context.failed);
            }, FILTER_MS);
        } });
    context.title("Fleet");
    await load(false);
    root.append(h("h1", {}, "Fleet"), summary,
        h("div", { class: "bar" }, h("label", { class: "grow" }, "Filter", input), compareButton),
        table.element, more);
    let due = 0;
    context.watch({ }, () => {
        due ||= setTimeout(() => {
            due = 0;
            if (!context.signal.aborted && document.activeElement?.type !== "checkbox")
                load(false).catch(() => {});
        }, REFRESH_MS);
    });
}
