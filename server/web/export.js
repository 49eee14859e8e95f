// What is shown, as files. Rows are objects; columns are their keys, or those given.
import { h } from "./dom.js";

function cell(value) {
    if (value === undefined || value === null || (typeof value === "number" && isNaN(value)))
        return "";
    const text = String(value);
    // A text that begins like a formula is one in a spreadsheet: an apostrophe keeps it text.
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function csv(rows, columns) {
    const names = columns ?? [...new Set(rows.flatMap((row) => Object.keys(row)))];
    return [names.map(cell).join(","),
        ...rows.map((row) => names.map((name) => cell(row[name])).join(","))].join("\n") + "\n";
}

function save(name, type, text) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    const link = h("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Two buttons; `rows` is called when one is pressed. */
export function exportButtons(name, rows) {
    const safe = name.replace(/[^A-Za-z0-9._-]+/g, "_").slice(0, 80);
    return [
        h("button", { type: "button", class: "small", "aria-label": `${name} as CSV`,
            onclick: () => save(`${safe}.csv`, "text/csv", csv(rows())) }, "CSV"),
        h("button", { type: "button", class: "small", "aria-label": `${name} as JSON`,
            onclick: () => save(`${safe}.json`, "application/json",
                JSON.stringify(rows(), null, 1)) }, "JSON"),
    ];
}

/** Series of a chart as rows: one a cell. */
export function seriesRows(series) {
    return series.flatMap((one) => one.steps.map((step, i) => {
        const row = { series: one.name, step, mean: one.mean[i] };
        if (one.min?.length)
            Object.assign(row, { min: one.min[i], max: one.max[i] });
        return row;
    }));
}
