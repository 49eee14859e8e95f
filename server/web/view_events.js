// Events: what happened, the newest first.
import * as api from "./api.js";
import { h, layerLink, runLink, select, time } from "./dom.js";
import { Table } from "./table.js";

const KINDS = [["", "all"], ["reinit", "reinit"], ["alert", "alert"], ["device", "device"],
    ["store", "store"]];
const PAGE = 100;

function look(event) {
    if (event.kind === "alert")
        return { firing: "bad", pending: "warn", ok: "good" }[event.attributes?.state] ?? "";
    return event.kind === "store" || event.kind === "device" ? "warn" : "";
}

const columns = [
    { key: "time", name: "When", tight: true, value: (event) => time(event.time_ms) },
    { key: "kind", name: "Kind", cell: (event) =>
        h("span", { class: `tag ${look(event)}` }, event.kind) },
    { key: "run", name: "Run", cell: (event) => event.run ? runLink(event.run) : "–" },
    { key: "layer", name: "Layer", wide: true, cell: (event) => event.run && event.layer
        ? layerLink(event.run, event.layer) : event.layer || "–" },
    { key: "step", name: "Step", number: true, wide: true },
    { key: "text", name: "What" },
    { key: "attributes", name: "Attributes", wide: true, value: (event) =>
        Object.entries(event.attributes ?? {}).map(([key, value]) => `${key}=${value}`)
            .join(" ") },
];

export async function show(root, context) {
    let kind = context.query.get("kind") ?? "", run = context.query.get("run") ?? "";
    const table = new Table("Events", columns, { empty: "Nothing happened yet." });
    const more = h("button", { type: "button", hidden: true,
        onclick: () => load(true).catch(context.failed) }, "Older");

    async function load(older) {
        const last = table.rows.at(-1);
        const answer = await api.get("events", { kind, run, limit: PAGE, digits: 6,
            before_id: older && last ? last.id : "" }, context.signal);
        table.set(older ? [...table.rows, ...answer.events] : answer.events);
        more.hidden = answer.events.length < PAGE;
    }

    const input = h("input", { type: "search", value: run, placeholder: "a run's id",
        onchange: () => {
            run = input.value.trim();
            context.update({ run });
            load(false).catch(context.failed);
        } });
    context.title("Events");
    await load(false);
    root.append(h("h1", {}, "Events"), h("div", { class: "bar" },
        select("Kind", KINDS, kind, (value) => {
            kind = value;
            context.update({ kind });
            load(false).catch(context.failed);
        }), h("label", { class: "grow" }, "Run", input)), table.element, more);
    context.watch({ events_only: true }, (message) => {
        const fresh = (message?.events ?? []).filter((event) => (!kind || event.kind === kind) &&
            (!run || event.run === run) && !table.rows.some((row) => row.id === event.id));
        if (message === null || message.missed)
            load(false).catch(() => {});
        else if (fresh.length)
            table.set([...fresh.reverse(), ...table.rows]);
    });
}
