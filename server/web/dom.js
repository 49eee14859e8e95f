// Elements without markup: every text goes through textContent, so that a run or layer named
// "<script>" is shown as just that.

/** h("td", {class: "number"}, "12", otherElement) */
export function h(tag, properties, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties ?? {})) {
        if (value === undefined || value === null || value === false)
            continue;
        if (name.startsWith("on"))
            element.addEventListener(name.slice(2), value);
        else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden")
            element[name] = value;
        else
            element.setAttribute(name, value === true ? "" : String(value));
    }
    append(element, children);
    return element;
}

function append(element, children) {
    for (const child of children) {
        if (Array.isArray(child))
            append(element, child);
        else if (child instanceof Node)
            element.append(child);
        else if (child !== undefined && child !== null && child !== false)
            element.append(document.createTextNode(String(child)));
    }
}

export function clear(element, ...children) {
    element.replaceChildren();
    append(element, children);
    return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** A line of at most 64 values without axes. */
export function spark(values, label) {
    const width = 110, height = 24;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("class", "spark");
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
    const known = values.filter(Number.isFinite);
    if (known.length < 2)
        return svg;
    const low = Math.min(...known), span = Math.max(...known) - low || 1;
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", values.map((value, i) => Number.isFinite(value)
        ? `${(1 + i / (values.length - 1) * (width - 2)).toFixed(1)},` +
          `${(height - 2 - (value - low) / span * (height - 4)).toFixed(1)}` : "").join(" "));
    svg.append(line);
    return svg;
}

/** Numbers as people read them: four digits, no more. */
export function number(value) {
    if (value === undefined || value === null || !Number.isFinite(value))
        return "–";
    const size = Math.abs(value);
    if (size === 0)
        return "0";
    if (Number.isInteger(value) && size < 1e6)
        return value.toLocaleString("en");
    if (size >= 1e6 || size < 1e-3)
        return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
}

export function count(value) {
    return Number(value).toLocaleString("en");
}

export function bytes(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (value >= 1024 && at < units.length - 1) {
        value /= 1024;
        at++;
    }
    return `${at ? value.toFixed(1) : value} ${units[at]}`;
}

export function time(ms) {
    if (!ms)
        return "–";
    const date = new Date(ms), pad = (part) => String(part).padStart(2, "0");
    return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ` +
        `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

export function ago(ms) {
    const seconds = Math.max(0, (Date.now() - ms) / 1000);
    if (!ms)
        return "–";
    if (seconds < 90)
        return `${Math.round(seconds)} s ago`;
    if (seconds < 5400)
        return `${Math.round(seconds / 60)} min ago`;
    if (seconds < 129600)
        return `${Math.round(seconds / 3600)} h ago`;
    return `${Math.round(seconds / 86400)} d ago`;
}

export function duration(seconds) {
    if (seconds < 120)
        return `${Math.round(seconds)} s`;
    if (seconds < 7200)
        return `${Math.round(seconds / 60)} min`;
    return `${(seconds / 3600).toFixed(1)} h`;
}

/** A labelled select. */
export function select(label, options, value, changed) {
    const element = h("select", { onchange: () => changed(element.value) },
        options.map((option) => {
            const [key, text] = Array.isArray(option) ? option : [option, option];
            return h("option", { value: key }, text);
        }));
    element.value = value;
    return h("label", {}, label, element);
}

/** A panel with a heading and buttons at its end. */
export function panel(title, buttons, ...children) {
    return h("section", { class: "panel", "aria-label": title },
        h("div", { class: "head" }, h("h2", {}, title), h("div", { class: "end" }, buttons)),
        children);
}

export function runLink(run, name) {
    return h("a", { href: `#/run/${encodeURIComponent(run)}` }, name || run);
}

export function layerLink(run, layer) {
    return h("a", { href: `#/layer/${encodeURIComponent(run)}/${encodeURIComponent(layer)}` },
        layer);
}
