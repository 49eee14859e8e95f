// The daemon's JSON API: one way to ask, one way to be told.

export class ApiError extends Error {
    constructor(status, error) {
        super(error.message || `HTTP ${status}`);
        this.status = status;
        this.reason = error.reason || "";
        this.field = error.field || "";
    }
}

/** Parameters of every request; a tenant that was chosen where no credential names one. */
export const common = {};

export function address(path, parameters) {
    const search = new URLSearchParams();
    for (const [name, value] of Object.entries({ ...common, ...parameters })) {
        for (const one of Array.isArray(value) ? value : [value])
            if (one !== undefined && one !== null && one !== "")
                search.append(name, one);
    }
    const text = search.toString();
    return `/api/v1/${path}${text ? `?${text}` : ""}`;
}

async function answer(response) {
    if (response.ok)
        return response.json();
    let error = {};
    try {
        error = (await response.json()).error ?? {};
    } catch {
        error = { message: `the daemon answered ${response.status}` };
    }
    throw new ApiError(response.status, error);
}

const TRIES = 3, PAUSE_MS = 700;

/** GET; a daemon that is busy for the moment is asked again. */
export async function get(path, parameters, signal) {
    for (let tried = 1; ; tried++) {
        const response = await fetch(address(path, parameters), { signal });
        if (response.status !== 503 || tried === TRIES)
            return answer(response);
        await new Promise((done) => setTimeout(done, PAUSE_MS * tried));
    }
}

export const run = (id) => `runs/${encodeURIComponent(id)}`;

export const session = {
    async get() {
        return answer(await fetch(address("session")));
    },
    async enter(token) {
        return answer(await fetch("/api/v1/session",
            { method: "POST", headers: { Authorization: `Bearer ${token}` } }));
    },
    async leave() {
        return answer(await fetch("/api/v1/session", { method: "DELETE" }));
    },
};

/** New points and events until `signal` ends it. A hidden page lets its connection go: browsers
 * have only six for one host. */
export function watch(parameters, signal, changed, state) {
    let source = null;
    const open = () => {
        if (source || document.hidden || signal.aborted)
            return;
        source = new EventSource(address("watch", parameters));
        source.addEventListener("open", () => state(true));
        source.addEventListener("error", () => state(false));
        source.addEventListener("message", (event) => changed(JSON.parse(event.data)));
    };
    const close = () => {
        source?.close();
        source = null;
        state(false);
    };
    const visibility = () => (document.hidden ? close() : (open(), changed(null)));
    document.addEventListener("visibilitychange", visibility);
    signal.addEventListener("abort", () => {
        document.removeEventListener("visibilitychange", visibility);
        close();
    });
    open();
}
