// Service: what the daemon itself does: queue, batches by shape and by why they closed, tenants,
// refusals, memory. From AdminService/Status and /metrics.
import * as api from "./api.js";
import { bytes, clear, count, duration, h, number } from "./dom.js";
import { Table } from "./table.js";

const REFRESH_MS = 2000;

/** The series of one family of Prometheus text: [{labels, value}]. */
export function family(text, name) {
    const found = [];
    for (const line of text.split("\n")) {
        if (!line.startsWith(name) || !"{ ".includes(line[name.length]))
            continue;
        const labels = {};
        for (const [, key, value] of line.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g))
            labels[key] = value.replaceAll("\\\"", "\"").replaceAll("\\\\", "\\");
        found.push({ labels, value: Number(line.slice(line.lastIndexOf(" ") + 1)) });
    }
    return found;
}

function tile(name, value, part) {
    const bar = h("i");
    bar.style.width = `${Math.min(100, 100 * (part ?? 0)).toFixed(1)}%`;
    return h("div", { class: "tile" }, h("div", { class: "name" }, name),
        h("div", { class: "value" }, value),
        part === undefined ? null : h("div", { class: "meter", role: "img",
            "aria-label": `${Math.round(100 * part)} % of the room` }, bar));
}

const tables = {
    devices: () => new Table("Devices", [
        { key: "index", name: "Device", number: true },
        { key: "backend", name: "Kind" },
        { key: "name", name: "Name", wide: true },
        { key: "path", name: "Path" },
        { key: "state", name: "State", value: (row) => row.in_service ? "in service" : "out",
            cell: (row) => h("span", { class: `tag ${row.in_service ? "good" : "bad"}` },
                row.in_service ? "in service" : "out of service") },
        { key: "busy_seconds", name: "Busy s", number: true,
            cell: (row) => number(row.busy_seconds) },
        { key: "batches", name: "Batches", number: true, cell: (row) => count(row.batches) },
        { key: "matrices", name: "Matrices", number: true, wide: true,
            cell: (row) => count(row.matrices) },
        { key: "flops_per_second", name: "Gflop/s", number: true, wide: true,
            value: (row) => row.flops_per_second / 1e9,
            cell: (row) => number(row.flops_per_second / 1e9) },
    ]),
    buckets: () => new Table("Batches by shape", [
        { key: "key", name: "Key" },
        { key: "waiting", name: "Waiting", number: true },
        { key: "oldest_ms", name: "Oldest ms", number: true, wide: true,
            cell: (row) => number(row.oldest_ms) },
        { key: "batches", name: "Batches", number: true, cell: (row) => count(row.batches) },
        { key: "matrices", name: "Matrices", number: true, cell: (row) => count(row.matrices) },
        { key: "size", name: "A batch", number: true, wide: true,
            value: (row) => row.batches ? row.matrices / row.batches : undefined,
            cell: (row) => number(row.batches ? row.matrices / row.batches : undefined) },
    ], { empty: "No batch yet." }),
    reasons: () => new Table("Batches by why they closed", [
        { key: "reason", name: "Reason" },
        { key: "batches", name: "Batches", number: true, cell: (row) => count(row.batches) },
    ], { empty: "No batch yet.", sort: "batches", descending: true }),
    tenants: () => new Table("Tenants", [
        { key: "name", name: "Tenant" },
        { key: "device_seconds", name: "Device s", number: true,
            cell: (row) => number(row.device_seconds) },
        { key: "weight", name: "Weight", number: true, wide: true },
        { key: "calls", name: "Calls", number: true },
        { key: "calls_total", name: "Since start", number: true, wide: true,
            cell: (row) => count(row.calls_total) },
        { key: "refusals_total", name: "Refused", number: true,
            cell: (row) => count(row.refusals_total) },
        { key: "bytes_in_flight", name: "In flight", number: true, wide: true,
            cell: (row) => bytes(row.bytes_in_flight) },
    ], { empty: "No tenant yet." }),
    refusals: () => new Table("Refusals", [
        { key: "reason", name: "Reason" },
        { key: "count", name: "Since start", number: true, cell: (row) => count(row.count) },
    ], { empty: "Nothing was refused.", sort: "count", descending: true }),
};

export async function show(root, context) {
    const shown = Object.fromEntries(Object.entries(tables).map(([name, make]) => [name, make()]));
    const tiles = h("div", { class: "tiles" }), facts = h("p", { class: "facts" });

    async function load() {
        const [status, metrics] = await Promise.all([
            api.get("status", { digits: 6 }, context.signal),
            fetch("/metrics", { signal: context.signal })
                .then((response) => response.ok ? response.text() : ""),
        ]);
        const memory = status.memory ?? {};
        clear(tiles,
            tile("Matrices waiting", count(status.jobs_waiting)),
            tile("With devices", count(status.jobs_running)),
            tile("Calls now", count(status.calls)),
            tile("Calls since start", count(status.calls_total)),
            tile("Refused", count(Object.values(status.refusals).reduce((a, b) => a + b, 0))),
            tile("Dropped", count(status.jobs_dropped)),
            tile("Slots", bytes(memory.slab_bytes ?? 0),
                memory.slab_bytes_max ? memory.slab_bytes / memory.slab_bytes_max : 0),
            tile("Messages", bytes(memory.message_bytes ?? 0),
                memory.message_bytes_max ? memory.message_bytes / memory.message_bytes_max : 0),
            tile("Resident", bytes(memory.resident_bytes ?? 0)));
        clear(facts, `fired ${status.version} · up ${duration(status.uptime_seconds)} · `,
            status.draining ? h("span", { class: "tag warn" }, "draining")
                : h("span", { class: "tag good" }, "serving"),
            ` · ${status.addresses.join(", ")}`);
        shown.devices.set(status.devices);
        shown.buckets.set(status.buckets);
        shown.tenants.set(status.tenants);
        shown.refusals.set(Object.entries(status.refusals)
            .map(([reason, times]) => ({ reason, count: times })));
        shown.reasons.set(family(metrics, "fired_batches_total")
            .map((one) => ({ reason: one.labels.reason, batches: one.value })));
    }

    context.title("Service");
    await load();
    root.append(h("h1", {}, "Service"), facts, tiles, shown.devices.element,
        h("div", { class: "grid" }, shown.buckets.element, shown.reasons.element,
            shown.tenants.element, shown.refusals.element));
    context.every(REFRESH_MS, () => load().catch((error) => {
        if (error.status === 401 || error.status === 403)
            context.failed(error);
    }));
}
