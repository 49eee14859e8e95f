// What is wrong with the page for people who do not see it, or do not use a mouse: a list of
// sentences. Contrast is that of WCAG: 4.5 for text, 3 for large text.
() => {
    const wrong = [], visible = (element) => {
        const box = element.getBoundingClientRect(), style = getComputedStyle(element);
        return box.width > 0 && box.height > 0 && style.visibility !== "hidden" &&
            style.display !== "none";
    };
    const tell = (element) => `<${element.tagName.toLowerCase()} ${element.className || ""}> ` +
        `"${(element.textContent || "").trim().slice(0, 40)}"`;
    const name = (element) => {
        const by = element.getAttribute("aria-labelledby");
        return (element.getAttribute("aria-label") || (by && document.getElementById(by)
            ?.textContent) || element.labels?.[0]?.textContent || element.title ||
            (["INPUT", "SELECT", "CANVAS"].includes(element.tagName) ? ""
                : element.textContent) || "").trim();
    };
    for (const element of document.querySelectorAll("a, button, input, select, [role=img], " +
        "[role=region], [tabindex='0']")) {
        if (visible(element) && !name(element))
            wrong.push(`no name: ${tell(element)}`);
    }
    for (const canvas of document.querySelectorAll("canvas")) {
        if (!canvas.getAttribute("aria-label") && canvas.getAttribute("aria-hidden") !== "true")
            wrong.push("a canvas has neither a label nor aria-hidden");
    }
    const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
    for (const id of new Set(ids)) {
        if (ids.filter((one) => one === id).length > 1)
            wrong.push(`the id ${id} is there twice`);
    }
    if (document.querySelectorAll("h1").length !== 1)
        wrong.push(`${document.querySelectorAll("h1").length} headings of level 1`);
    if (!document.documentElement.lang || !document.title)
        wrong.push("no language or no title");
    for (const table of document.querySelectorAll("table")) {
        for (const head of table.querySelectorAll("th"))
            if (!head.scope)
                wrong.push(`a head without scope: ${tell(head)}`);
    }
    if (document.querySelector("[tabindex]:not([tabindex='0']):not([tabindex='-1'])"))
        wrong.push("a tabindex above 0");
    const parse = (text) => {
        const parts = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
        return [parts[0], parts[1], parts[2], parts[3] ?? 1];
    };
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((part) => part / 255).map((part) =>
            part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]))
        .concat(1);
    const ground = (element) => {
        const layers = [];
        for (let at = element; at; at = at.parentElement) {
            const color = parse(getComputedStyle(at).backgroundColor);
            if (color[3] > 0)
                layers.push(color);
            if (color[3] === 1)
                break;
        }
        return layers.reduceRight((below, top) => over(top, below), [255, 255, 255, 1]);
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const seen = new Set();
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || seen.has(element) || !visible(element) ||
            element.closest(":disabled, script, noscript, .skip"))
            continue;
        seen.add(element);
        const style = getComputedStyle(element), below = ground(element);
        const [a, b] = [light(over(parse(style.color), below)), light(below)];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        if (ratio < (large ? 3 : 4.5) - 0.01)
            wrong.push(`contrast ${ratio.toFixed(2)}: ${tell(element)}`);
    }
    return wrong;
}
