// Numbers to places: linear and logarithmic scales, round ticks, and search in sorted steps.

export function linear(low, high, from, to) {
    const factor = (to - from) / (high - low || 1);
    const scale = (value) => from + (value - low) * factor;
    scale.invert = (place) => low + (place - from) / factor;
    scale.ticks = (wanted) => roundTicks(low, high, wanted);
    return scale;
}

export function logarithmic(low, high, from, to) {
    const inner = linear(Math.log10(low), Math.log10(high), from, to);
    const scale = (value) => inner(Math.log10(Math.max(value, low / 10)));
    scale.invert = (place) => 10 ** inner.invert(place);
    scale.ticks = (wanted) => {
        const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
        if (last - first < 1)
            return roundTicks(low, high, wanted);
        const every = Math.max(1, Math.ceil((last - first) / wanted));
        const ticks = [];
        for (let power = first; power <= last; power += every)
            ticks.push(10 ** power);
        return ticks;
    };
    return scale;
}

function roundTicks(low, high, wanted) {
    const rough = (high - low) / Math.max(1, wanted);
    if (!(rough > 0))
        return [low];
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough - 1e-12 * power);
    const ticks = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + 1e-9 * step; at += step)
        ticks.push(Number(at.toPrecision(12)));
    return ticks;
}

/** The first index whose step is not below `step`. */
export function lowerBound(steps, step) {
    let low = 0, high = steps.length;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (steps[middle] < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/** The index of the nearest step, or -1. */
export function nearest(steps, step) {
    const at = lowerBound(steps, step);
    if (steps.length === 0)
        return -1;
    if (at === 0)
        return 0;
    if (at === steps.length)
        return at - 1;
    return step - steps[at - 1] <= steps[at] - step ? at - 1 : at;
}

/** First and last step of all series; null without any. */
export function extent(series) {
    let low = Infinity, high = -Infinity;
    for (const one of series) {
        if (one.steps.length) {
            low = Math.min(low, one.steps[0]);
            high = Math.max(high, one.steps[one.steps.length - 1]);
        }
    }
    return low <= high ? [low, high > low ? high : low + 1] : null;
}

/** How far apart neighbouring points usually are: what a gap is measured by. */
export function spacing(series, cellSteps) {
    const gaps = [];
    for (const one of series.slice(0, 64)) {
        for (let i = 1; i < Math.min(one.steps.length, 200); i++)
            gaps.push(one.steps[i] - one.steps[i - 1]);
    }
    gaps.sort((a, b) => a - b);
    return Math.max(cellSteps || 1, gaps.length ? gaps[gaps.length >> 1] : 1);
}
