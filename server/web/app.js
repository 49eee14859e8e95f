// The frame around the views: which one an address means, colours, signing in, the live line.
//
// An address is #/view/part/part?parameter=value; what a view shows is in it, so that it can be
// sent to somebody. A view is a function of (root, context) and ends when context.signal does.
import * as api from "./api.js";
import { clear, h } from "./dom.js";
import * as fleet from "./view_fleet.js";
import * as run from "./view_run.js";
import * as layer from "./view_layer.js";
import * as compare from "./view_compare.js";
import * as service from "./view_service.js";
import * as events from "./view_events.js";

const views = { "": fleet, run, layer, compare, service, events };
const main = document.getElementById("main");
const live = document.getElementById("live");
let current = null; // AbortController of the view that is shown

function parse() {
    const text = location.hash.replace(/^#\/?/, "");
    const [path, search = ""] = text.split("?", 2);
    const parts = path.split("/").map((part) => {
        try {
            return decodeURIComponent(part);
        } catch {
            return part;
        }
    });
    return { view: parts[0], parts: parts.slice(1), query: new URLSearchParams(search) };
}

/** Changes parameters of the address without leaving the view. */
function update(changes) {
    const { query } = parse();
    for (const [name, value] of Object.entries(changes)) {
        query.delete(name);
        for (const one of Array.isArray(value) ? value : [value])
            if (one !== undefined && one !== null && one !== "")
                query.append(name, one);
    }
    const path = location.hash.split("?")[0] || "#/", text = query.toString();
    history.replaceState(null, "", text ? `${path}?${text}` : path);
    return query;
}

/** Whether news come by themselves; a view that is not told of any shows nothing. */
function setLive(on) {
    live.hidden = on === null;
    live.textContent = on ? "live" : "offline";
    live.toggleAttribute("data-on", Boolean(on));
}

export function showError(root, error) {
    if (error.name === "AbortError")
        return;
    if (error.status === 401) {
        showSignIn();
        return;
    }
    const about = error.status === 403 ? "This credential may not see this. " : "";
    clear(root, h("div", { class: "message bad", role: "alert" },
        about + (error.status ? error.message : `No answer from the daemon: ${error.message}`)));
}

function showSignIn() {
    const token = h("input", { type: "password", id: "token", autocomplete: "current-password",
        required: true });
    const note = h("p", { role: "alert" });
    const enter = async (event) => {
        event.preventDefault();
        try {
            await api.session.enter(token.value);
            token.value = "";
            await start();
        } catch (error) {
            note.textContent = error.status === 401 ? "This token is not known." : error.message;
            token.focus();
        }
    };
    clear(main, h("form", { class: "panel sign-in", onsubmit: enter }, h("h1", {}, "Sign in"),
        h("p", { class: "dim" }, "This daemon asks for a token. Its operator gives you one."),
        h("label", { for: "token" }, "Token"), token,
        h("button", { type: "submit", class: "primary" }, "Sign in"), note));
    token.focus();
}

async function route() {
    const address = parse(), view = views[address.view];
    current?.abort();
    current = new AbortController();
    const signal = current.signal;
    setLive(null);
    const name = address.view || "fleet";
    for (const link of document.querySelectorAll("nav a")) {
        const shown = link.dataset.view === name ||
            (link.dataset.view === "fleet" && (name === "run" || name === "layer"));
        link.toggleAttribute("aria-current", shown);
        if (shown)
            link.setAttribute("aria-current", "page");
    }
    clear(main);
    if (!view) {
        clear(main, h("div", { class: "message", role: "alert" }, "There is no such view. "),
            h("p", {}, h("a", { href: "#/" }, "To the fleet")));
        return;
    }
    const context = {
        ...address, signal, update,
        title: (text) => { document.title = `${text} – fired`; },
        /** `changed` is called with what is new, or with null after a time without news. */
        watch: (parameters, changed) => api.watch(parameters, signal, changed,
            (on) => signal.aborted || setLive(on)),
        /** As setInterval, while the view is shown and the page is seen. */
        every: (ms, action) => {
            const timer = setInterval(() => document.hidden || action(), ms);
            signal.addEventListener("abort", () => clearInterval(timer));
        },
        /** Charts are told of their end. */
        keep: (chart) => {
            signal.addEventListener("abort", () => chart.close());
            return chart;
        },
        themed: (redraw) => {
            document.addEventListener("themechange", redraw, { signal });
        },
        failed: (error) => showError(main, error),
    };
    try {
        await view.show(main, context);
        main.dataset.shown = signal.aborted ? "" : name;
    } catch (error) {
        if (!signal.aborted) {
            showError(main, error);
            main.dataset.shown = "error";
        }
    }
}

const THEMES = { "": "Auto", light: "Light", dark: "Dark" };

function applyTheme(theme) {
    const button = document.getElementById("theme");
    if (theme)
        document.documentElement.dataset.theme = theme;
    else
        delete document.documentElement.dataset.theme;
    button.textContent = THEMES[theme];
    button.setAttribute("aria-label", `Colours: ${THEMES[theme]}`);
    document.dispatchEvent(new Event("themechange"));
}

function remembered(name) {
    try {
        return localStorage.getItem(name) ?? "";
    } catch {
        return ""; // storage may be off
    }
}

function setUpTheme() {
    let theme = remembered("theme");
    if (!(theme in THEMES))
        theme = "";
    applyTheme(theme);
    document.getElementById("theme").addEventListener("click", () => {
        const names = Object.keys(THEMES);
        theme = names[(names.indexOf(theme) + 1) % names.length];
        applyTheme(theme);
        try {
            localStorage.setItem("theme", theme);
        } catch { /* not kept, then */ }
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
        document.dispatchEvent(new Event("themechange")));
}

/** The view is asked for at once; whoever is not known is told so by its refusal. */
async function start() {
    const out = document.getElementById("sign-out");
    api.session.get().then((session) => {
        out.hidden = !(session.needed && session.signed_in);
    }).catch(() => {});
    await route();
}

document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
});
document.getElementById("sign-out").addEventListener("click", async () => {
    current?.abort();
    await api.session.leave();
    await start();
});
addEventListener("hashchange", () => {
    main.dataset.shown = "";
    route().then(() => main.focus({ preventScroll: true }));
    scrollTo(0, 0);
});
/** Which tenant, where none is given by a credential: ?tenant=NAME before the #. */
const tenant = new URLSearchParams(location.search).get("tenant");
if (tenant)
    api.common.tenant = tenant;
setUpTheme();
start();
