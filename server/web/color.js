// Colours that people with any colour vision can tell apart: viridis for amounts, Okabe and Ito's
// set for lines.

// viridis at 16 places, linear between them.
const STOPS = [
    [68, 1, 84], [72, 26, 108], [71, 47, 125], [65, 68, 135], [57, 86, 140], [49, 104, 142],
    [42, 120, 142], [35, 136, 142], [31, 152, 139], [34, 168, 132], [53, 183, 121], [84, 197, 104],
    [122, 209, 81], [165, 219, 54], [210, 226, 27], [253, 231, 37],
];

const SIZE = 256;

/** 256 colours as 32-bit words in the order that ImageData wants. */
export const palette = (() => {
    const words = new Uint32Array(SIZE), little = new Uint8Array(words.buffer);
    for (let i = 0; i < SIZE; i++) {
        const at = i / (SIZE - 1) * (STOPS.length - 1);
        const low = Math.min(STOPS.length - 2, Math.floor(at)), part = at - low;
        for (let c = 0; c < 3; c++)
            little[4 * i + c] = Math.round(STOPS[low][c] * (1 - part) + STOPS[low + 1][c] * part);
        little[4 * i + 3] = 255;
    }
    return words;
})();

const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#a8478a", "#b07d00", "#3d94c9", "#555555",
    "#7a3e00"];
const DARK = ["#56b4e9", "#e69f00", "#2fd3a5", "#e79ac6", "#f0e442", "#7fa8ff", "#c5c9d1",
    "#ff8c5a"];

export function isDark() {
    const theme = document.documentElement.dataset.theme;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function lineColor(index) {
    const set = isDark() ? DARK : LIGHT;
    return set[index % set.length];
}

/** Lines beyond the eighth get another dash. */
export function lineDash(index) {
    return [[], [6, 3], [2, 3], [8, 3, 2, 3]][Math.floor(index / LIGHT.length) % 4];
}

// Asking for a computed style makes the browser lay out the page first: once a theme is enough.
const known = new Map();
document.addEventListener("themechange", () => known.clear());

export function css(name) {
    let value = known.get(name);
    if (value === undefined) {
        value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
        known.set(name, value);
    }
    return value;
}

/** The 2nd and the 98th percentile of a sample of the values: one outlier does not grey the rest. */
export function robustLimits(series) {
    const sample = [];
    let total = 0;
    for (const one of series)
        total += one.mean.length;
    const step = Math.max(1, Math.floor(total / 5000));
    let at = 0;
    for (const one of series) {
        for (let i = 0; i < one.mean.length; i++) {
            if (at++ % step === 0 && Number.isFinite(one.mean[i]))
                sample.push(one.mean[i]);
        }
    }
    if (sample.length === 0)
        return [0, 1];
    sample.sort((a, b) => a - b);
    const low = sample[Math.floor(0.02 * (sample.length - 1))];
    const high = sample[Math.ceil(0.98 * (sample.length - 1))];
    return high > low ? [low, high] : [low - 0.5 * (Math.abs(low) || 1),
        low + 0.5 * (Math.abs(low) || 1)];
}
