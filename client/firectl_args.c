/* firectl_args: the options of every command, in one table; parsing, --help and the check for
 * misspelt options come from it. --target, --steps, --seed and --state-policy are other ways to
 * write --set, so the order in which they are given decides, as it does among --set. */
#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "firectl.h"

#define THREADS_MAX    512u /* the CPU backend's */
#define COUNT_MAX      1000000u
#define LIMIT_S_MAX    86400u
#define WIDTH_MAX      1000u
#define RUNS_MAX       1000u
#define INTERVAL_S_MIN 0.05
#define INTERVAL_S_MAX 3600.0

enum {
    KEY_PRESET = 256,
    KEY_SET,
    KEY_TARGET,
    KEY_STEPS,
    KEY_INCLUDE,
    KEY_EXCLUDE,
    KEY_ARCH,
    KEY_ONLY,
    KEY_SPECTRUM,
    KEY_RESIDUAL,
    KEY_TIE,
    KEY_INIT,
    KEY_ACTIVATIONS,
    KEY_GRADIENTS,
    KEY_STATE,
    KEY_STATE_OUT,
    KEY_STATE_POLICY,
    KEY_SEED,
    KEY_THREADS,
    KEY_PATH,
    KEY_DEADLINE,
    KEY_PER_MATRIX,
    KEY_JSON,
    KEY_DRY_RUN,
    KEY_FAIL_IF,
    KEY_NO_COLOR,
    KEY_LOCAL,
    KEY_ADDR,
    KEY_TOKEN,
    KEY_TENANT,
    KEY_CA,
    KEY_CERT,
    KEY_KEY,
    KEY_SERVER_NAME,
    KEY_PRIORITY,
    KEY_RUN,
    KEY_STEP,
    KEY_INTERVAL,
    KEY_LIMIT,
    KEY_LATENCY,
    KEY_BATCH,
    KEY_LAYER,
    KEY_STATISTIC,
    KEY_FROM,
    KEY_TO,
    KEY_WIDTH,
    KEY_FILTER,
    KEY_MOST,
    KEY_EVENTS,
    KEY_FORMAT,
    KEY_TITLE,
    KEY_FRAMEWORK,
    KEY_LABEL,
    KEY_OUTPUT = 'o',
    KEY_QUIET = 'q',
    KEY_COUNT = 'n',
};

#define R     (1u << FIRECTL_REINIT)
#define A     (1u << FIRECTL_ANALYZE)
#define C     (1u << FIRECTL_COMPARE)
#define P     (1u << FIRECTL_PRESETS)
#define S     (1u << FIRECTL_SELFTEST)
#define D     (~0u << (FIRECTL_SELFTEST + 1)) /* the commands that ask a daemon follow selftest */
#define PING  (1u << FIRECTL_PING)
#define TOP   (1u << FIRECTL_TOP)
#define DRAIN (1u << FIRECTL_DRAIN)
#define RUNS  (1u << FIRECTL_RUNS)
#define SHOW  (1u << FIRECTL_SHOW)
#define WATCH (1u << FIRECTL_WATCH)
#define ADV   (1u << FIRECTL_ADVISE)
#define EXP   (1u << FIRECTL_EXPORT)
#define REP   (1u << FIRECTL_POINTS)

/* clang-format off */
static const struct {
    const char *name;
    int key;
    const char *value; /* NULL: takes none */
    uint32_t commands;
    const char *meaning;
} rows[] = {
    { "output", KEY_OUTPUT, "OUT", R, "the file, directory or - to write" },
    { "dry-run", KEY_DRY_RUN, NULL, R, "compute and report everything, write nothing" },
    { "preset", KEY_PRESET, "NAME", R | A, "a bundle of options (firectl presets); default fire" },
    { "set", KEY_SET, "[GLOB:]KEY=VALUE", R | A | C,
      "set one option, for matching tensors only if GLOB is given; later ones win" },
    { "target", KEY_TARGET, "DFI", R, "the same as --set target=DFI" },
    { "steps", KEY_STEPS, "N", R, "the same as --set steps=N" },
    { "seed", KEY_SEED, "N", R, "the same as --set seed=N" },
    { "arch", KEY_ARCH, "NAME", R | A | C,
      "auto, gpt2, llama, vit, resnet, mamba, plain (every Linear and Conv2d but the head) or none "
      "(every 2-D and 4-D tensor)" },
    { "only", KEY_ONLY, "all|qk", R | A, "all the architecture projects, or query and key only" },
    { "include", KEY_INCLUDE, "GLOB", R | A | C,
      "of what the architecture selects, only tensors whose name matches; repeatable" },
    { "exclude", KEY_EXCLUDE, "GLOB", R | A | C, "leave tensors alone whose name matches; "
      "repeatable" },
    { "tie", KEY_TIE, "A=B", R, "A and B are one weight: project A, give B the same; repeatable" },
    { "init", KEY_INIT, "FILE", R, "initial weights, for presets that reset" },
    { "activations", KEY_ACTIVATIONS, "FILE", R | A,
      "tensors PARAMETER.activations (units last) or PARAMETER.unit_means, for dormant_ratio" },
    { "gradients", KEY_GRADIENTS, "FILE", R | A,
      "tensors PARAMETER.grad, for gradient_dormant_ratio" },
    { "state", KEY_STATE, "FILE", R,
      "optimizer state: tensors PARAMETER.exp_avg, .exp_avg_sq, .momentum_buffer, .step" },
    { "state-out", KEY_STATE_OUT, "FILE", R,
      "where the new state goes; default OUT with .state.safetensors for .safetensors" },
    { "state-policy", KEY_STATE_POLICY, "POLICY", R,
      "keep, zero (moments 0, step kept: the next Adam step is up to 3.2 lr), reset (moments and "
      "step 0: 1 lr) or transport (first moment moved to the tangent space at the new weights)" },
    { "spectrum", KEY_SPECTRUM, NULL, R | A,
      "also effective rank, srank and condition; dear for large matrices" },
    { "residual", KEY_RESIDUAL, NULL, R, "also polar_residual; one more product a matrix" },
    { "per-matrix", KEY_PER_MATRIX, NULL, R | A, "with --json, one object a matrix inside" },
    { "fail-if", KEY_FAIL_IF, "FIELD<|<=|>|>=VALUE", R | A | C,
      "exit 3 if a tensor's field is so; repeatable" },
    { "json", KEY_JSON, NULL, (R | A | C | P | S | D) & ~TOP,
      "one JSON object a line instead of a table" },
    { "threads", KEY_THREADS, "N", R | A | C | S, "compute threads; default all there are" },
    { "path", KEY_PATH, "NAME", R | A | C | S,
      "compute path: auto, portable, avx2, avx512 or amx" },
    { "deadline", KEY_DEADLINE, "SECONDS", R | A | C, "give up, and write nothing, after so long" },
    { "deadline", KEY_DEADLINE, "SECONDS", D, "give up after so long without an answer; "
      "default 10" },
    { "count", KEY_COUNT, "N", PING | TOP, "round trips (default 4, with --latency 1000), or "
      "frames of --batch (default 1)" },
    { "interval", KEY_INTERVAL, "SECONDS", PING | TOP, "between them; default 1" },
    { "latency", KEY_LATENCY, NULL, PING, "one after another without a pause; only the summary" },
    { "batch", KEY_BATCH, NULL, TOP, "print frames as text, without a screen" },
    { "limit", KEY_LIMIT, "SECONDS", DRAIN,
      "cancel what still runs after so long; default: the daemon's setting" },
    { "quiet", KEY_QUIET, NULL, R | A | C, "no progress bar" },
    { "no-color", KEY_NO_COLOR, NULL, R | A | C | P | S | D,
      "no colours (also NO_COLOR, TERM=dumb)" },
    { "local", KEY_LOCAL, NULL, R | A | C | P | S,
      "compute in this process, whatever FIRED_ADDR says; the default when that is not set" },
    { "addr", KEY_ADDR, "ADDRESS", R | A | C | D,
      "the daemon: unix:PATH or HOST:PORT; default FIRED_ADDR" },
    { "tenant", KEY_TENANT, "NAME", R | A | C | D,
      "who asks, where the daemon has no credentials configured; default local" },
    { "token", KEY_TOKEN, "TEXT", R | A | C | D,
      "bearer token; default FIRED_TOKEN, which other users of the machine cannot read" },
    { "ca", KEY_CA, "FILE", R | A | C | D, "TLS: certificates (PEM) that sign the daemon's" },
    { "cert", KEY_CERT, "FILE", R | A | C | D, "TLS: this side's certificate (PEM), with --key" },
    { "key", KEY_KEY, "FILE", R | A | C | D, "TLS: the key (PEM) of --cert" },
    { "server-name", KEY_SERVER_NAME, "NAME", R | A | C | D,
      "TLS: the name in the daemon's certificate, if it is not the host of --addr" },
    { "priority", KEY_PRIORITY, "CLASS", R | A | C,
      "interactive, normal or bulk: what the daemon serves first; default normal" },
    { "run", KEY_RUN, "NAME", R | A, "the training run this belongs to, for the daemon's history" },
    { "step", KEY_STEP, "N", R | A, "the run's step, for the daemon's history" },
    { "output", KEY_OUTPUT, "FILE", EXP, "the file to write; - or none: standard output" },
    { "format", KEY_FORMAT, "NAME", EXP,
      "csv, json or safetensors (spectra of reinitialisations); default: by the file's name" },
    { "filter", KEY_FILTER, "TEXT", RUNS, "only runs with it in their id, name or a label" },
    { "limit", KEY_MOST, "N", RUNS, "at most so many, 1 to 1000; default 200" },
    { "statistic", KEY_STATISTIC, "NAME", SHOW | EXP,
      "such as dfi or dormant_ratio; repeatable; default: dfi of show, all of export" },
    { "layer", KEY_LAYER, "NAME", SHOW | EXP | ADV, "only this layer; repeatable; default all" },
    { "layer", KEY_LAYER, "NAME", REP, "the layer the points are of; default: the whole run" },
    { "from", KEY_FROM, "STEP", SHOW | EXP, "from this step on" },
    { "to", KEY_TO, "STEP", SHOW | EXP, "up to this step" },
    { "width", KEY_WIDTH, "COLUMNS", SHOW | RUNS, "of the picture; default the terminal's, or 80" },
    { "events", KEY_EVENTS, NULL, WATCH | EXP, "only events, no points" },
    { "count", KEY_COUNT, "N", WATCH, "end after so many messages" },
    { "fail-if", KEY_FAIL_IF, "reinit|watch", ADV,
      "exit 3 if a layer's verdict is reinit, or is watch or reinit" },
    { "run", KEY_RUN, "ID", REP, "the run they belong to" },
    { "step", KEY_STEP, "N", REP, "the training step they were measured at" },
    { "name", KEY_TITLE, "TEXT", REP, "the run's name for people" },
    { "framework", KEY_FRAMEWORK, "NAME", REP, "such as torch or jax" },
    { "label", KEY_LABEL, "KEY=VALUE", REP, "of the run; repeatable" },
};

static const struct {
    const char *arguments;
    const char *text; /* before the options, \v, after them */
} manuals[] = {
    [FIRECTL_REINIT] = { "IN -o OUT",
      "Replaces the weight matrices of a checkpoint by their nearest isometry.\n\n"
      "IN is a .safetensors file, a directory with model.safetensors.index.json and its shards, or "
      "- for standard input. OUT is written under another name and renamed when complete; tensors "
      "that are not projected, and all metadata, are byte-identical. If one tensor is refused "
      "nothing is written.\v"
      "Examples:\n"
      "  firectl reinit model.safetensors -o new.safetensors\n"
      "  firectl reinit model.safetensors --dry-run --json\n"
      "  firectl reinit gpt2/ -o new/ --preset official-gpt\n"
      "  firectl reinit in.safetensors -o out.safetensors --set 'h.0.*:blend=0.5' \\\n"
      "      --exclude '*.mlp.*' --fail-if 'dfi_unscaled_after>1e-6'\n"
      "  firectl reinit m.safetensors -o n.safetensors --state adam.safetensors \\\n"
      "      --state-policy transport\n" },
    [FIRECTL_ANALYZE] = { "IN",
      "Statistics of the weight matrices of a checkpoint; nothing is written.\v"
      "Examples:\n"
      "  firectl analyze model.safetensors --spectrum\n"
      "  firectl analyze model.safetensors --arch none --json\n"
      "  firectl analyze m.safetensors --activations acts.safetensors \\\n"
      "      --fail-if 'dormant_ratio>0.3'\n" },
    [FIRECTL_COMPARE] = { "A B",
      "Per tensor of two checkpoints: SFE (squared distance), relative change, DfI of both, and "
      "whether the bytes are the same. Differences are not a failure; use --fail-if.\v"
      "Examples:\n"
      "  firectl compare before.safetensors after.safetensors\n"
      "  firectl compare a/ b/ --json --fail-if 'sfe>0'\n" },
    [FIRECTL_PRESETS] = { "[NAME]",
      "Lists the presets, or shows every option of one.\v"
      "Examples:\n  firectl presets\n  firectl presets official-gpt --json\n" },
    [FIRECTL_SELFTEST] = { "",
      "Projects a handful of matrices on every compute path of this machine and compares them with "
      "the float64 reference.\v"
      "Examples:\n  firectl selftest\n  firectl selftest --path avx2 --json\n" },
    [FIRECTL_HEALTH] = { "",
      "Asks a daemon whether it serves. Exit code 0: SERVING; 1: it answers, but does not serve "
      "(it drains); 64 + gRPC code: no answer (78: nobody is there).\v"
      "Examples:\n  firectl health\n  firectl health --addr unix:fired.sock --deadline 2\n" },
    [FIRECTL_STATUS] = { "",
      "What a daemon is and does: version, addresses, calls, refusals by reason, memory, devices, "
      "batches by shape, tenants.\v"
      "Examples:\n  firectl status\n  firectl status --addr 127.0.0.1:8470 --json\n" },
    [FIRECTL_PING] = { "",
      "Round trips to a daemon (Health/Check), and their least, median, 90th and 99th percentile "
      "and largest time. The connection is made before the first.\v"
      "Examples:\n  firectl ping\n  firectl ping --latency -n 10000 --json\n" },
    [FIRECTL_STAT] = { "[INTERVAL [COUNT]]",
      "A row every INTERVAL seconds (default 1): calls, matrices and batches a second, the mean "
      "batch, matrices waiting and running, how busy the devices are, memory in use, refusals a "
      "second. The first row is about the time since the daemon's start. Without COUNT it goes on "
      "until it is stopped.\v"
      "Examples:\n  firectl stat\n  firectl stat 5 12 --json\n" },
    [FIRECTL_TOP] = { "",
      "Devices, queue, batches by shape and tenants on the whole screen. Keys: q quits, space "
      "refreshes now, + and - change the interval.\v"
      "Examples:\n  firectl top\n  firectl top --interval 0.5\n  firectl top --batch -n 2\n" },
    [FIRECTL_DRAIN] = { "",
      "Tells a daemon to take no new work, to finish what runs and to end, as SIGTERM does. "
      "Returns at once.\v"
      "Examples:\n  firectl drain\n  firectl drain --limit 30 --addr unix:fired.sock\n" },
    [FIRECTL_RUNS] = { "",
      "The runs a daemon has a history of, those seen last first: steps, layers, the layer whose "
      "raw DfI has grown most against its start, DfI over time, alerts, the last event.\v"
      "Examples:\n  firectl runs\n  firectl runs --filter atari --limit 20 --json\n" },
    [FIRECTL_SHOW] = { "RUN",
      "A picture of a run: layers from top to bottom, steps from left to right, reinitialisations "
      "marked above; then statistics of the whole run and the last events. Colours span the 2nd to "
      "the 98th percentile; where nothing was measured nothing is drawn. With --json one object a "
      "series, then one an event.\v"
      "Examples:\n  firectl show my-run\n"
      "  firectl show my-run --statistic dormant_ratio --from 1000\n" },
    [FIRECTL_WATCH] = { "[RUN]",
      "New points and events of a run, or of all runs, a line each, until it is stopped.\v"
      "Examples:\n  firectl watch my-run\n  firectl watch --events --json\n" },
    [FIRECTL_ADVISE] = { "RUN",
      "Which layers lose plasticity, since which step, which rule says so, what would help and "
      "what it would cost. Advice never acts by itself.\v"
      "Examples:\n  firectl advise my-run\n  firectl advise my-run --json --fail-if reinit\n" },
    [FIRECTL_EXPORT] = { "RUN -o FILE",
      "The history of a run, every point that is kept: CSV (layer, statistic, step, value, min, "
      "max, count), JSON, or, as safetensors, the spectra before and after its reinitialisations. "
      "FILE is written under another name and renamed when complete.\v"
      "Examples:\n  firectl export my-run -o my-run.csv\n"
      "  firectl export my-run -o my-run.json --statistic dfi --statistic loss\n"
      "  firectl export my-run -o spectra.safetensors\n"
      "  firectl export my-run --events --format json\n" },
    [FIRECTL_POINTS] = { "--run ID [STATISTIC=VALUE... | -]",
      "Sends points to a run's history: STATISTIC=VALUE of --step and --layer, or with - lines of "
      "standard input: STEP LAYER STATISTIC VALUE, with - as the layer of the whole run, or JSON "
      "objects with these as keys. Lines are sent as they come, many at once when they come fast; "
      "what was answered for is on disk, and sending it again changes nothing.\v"
      "Examples:\n  firectl report --run my-run --step 100 loss=0.31 accuracy=0.9\n"
      "  firectl report --run my-run --step 100 --layer fc1.weight dormant_ratio=0.12\n"
      "  ./train | firectl report --run my-run --framework torch -\n" },
};
/* clang-format on */

#undef R
#undef A
#undef C
#undef P
#undef S
#undef D
#undef PING
#undef TOP
#undef DRAIN
#undef RUNS
#undef SHOW
#undef WATCH
#undef ADV
#undef EXP
#undef REP

#define ROW_COUNT (sizeof(rows) / sizeof(rows[0]))

struct parse {
    struct firectl_args *args;
    bool no_memory;
};

static bool row_applies(size_t row, enum firectl_command command)
{
    return (rows[row].commands >> command & 1u) != 0;
}

/* Adds the formatted text to a list that owns it. */
static void __attribute__((format(printf, 3, 4)))
list_add(struct parse *parse, struct firectl_list *list, const char *format, ...)
{
    va_list arguments;
    char *text = NULL;
    int length;

    if (list->count == list->room) {
        const size_t room = list->room ? 2 * list->room : 8;
        char **grown = realloc(list->items, room * sizeof(*grown));

        if (!grown) {
            parse->no_memory = true;
            return;
        }
        list->items = grown;
        list->room = room;
    }
    va_start(arguments, format);
    length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        parse->no_memory = true;
    else
        list->items[list->count++] = text;
}

static void list_release(struct firectl_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct firectl_list){ 0 };
}

void firectl_args_release(struct firectl_args *args)
{
    list_release(&args->sets);
    list_release(&args->includes);
    list_release(&args->excludes);
    list_release(&args->ties);
    list_release(&args->thresholds);
    list_release(&args->points);
    list_release(&args->layers);
    list_release(&args->statistics);
    list_release(&args->labels);
}

/* Numbers of options that are not keys of --set. */
static error_t parse_threads(const char *text, struct argp_state *state, uint32_t *threads)
{
    char *end = NULL;
    unsigned long value;

    errno = 0;
    value = strtoul(text, &end, 10);
    if (errno || end == text || *end || text[0] == '-' || value > THREADS_MAX) {
        argp_error(state, "--threads must be 0 (all) to %u, got '%s'", THREADS_MAX, text);
        return EINVAL;
    }
    *threads = (uint32_t)value;
    return 0;
}

static error_t parse_deadline(const char *text, struct argp_state *state, double *seconds)
{
    char *end = NULL;
    const double value = strtod(text, &end);

    if (end == text || *end || !isfinite(value) || value <= 0.0) {
        argp_error(state, "--deadline must be a number of seconds above 0, got '%s'", text);
        return EINVAL;
    }
    *seconds = value;
    return 0;
}

static error_t parse_step(const char *option, const char *text, struct argp_state *state,
                          int64_t *step)
{
    char *end = NULL;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < 0) {
        argp_error(state, "%s must be a whole number from 0, got '%s'", option, text);
        return EINVAL;
    }
    *step = value;
    return 0;
}

static error_t parse_priority(const char *text, struct argp_state *state,
                              enum fire_priority *priority)
{
    static const char *const names[] = { [FIRE_PRIORITY_NORMAL] = "normal",
                                         [FIRE_PRIORITY_INTERACTIVE] = "interactive",
                                         [FIRE_PRIORITY_BULK] = "bulk" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i]) == 0) {
            *priority = (enum fire_priority)i;
            return 0;
        }
    }
    argp_error(state, "--priority must be interactive, normal or bulk, got '%s'", text);
    return EINVAL;
}

static error_t parse_arch(const char *text, struct argp_state *state, struct firectl_args *args,
                          bool only)
{
    struct fire_error error = { 0 };
    const enum fire_status status =
        only ? arch_only_parse(text, &args->only, &error) : arch_parse(text, &args->arch, &error);

    if (status == FIRE_OK)
        return 0;
    argp_error(state, "%s", error.message);
    return EINVAL;
}

static error_t parse_argument(const char *text, struct argp_state *state)
{
    static const uint32_t inputs_max[] = {
        [FIRECTL_REINIT] = 1,   [FIRECTL_ANALYZE] = 1, [FIRECTL_COMPARE] = 2, [FIRECTL_PRESETS] = 1,
        [FIRECTL_SELFTEST] = 0, [FIRECTL_HEALTH] = 0,  [FIRECTL_STATUS] = 0,  [FIRECTL_PING] = 0,
        [FIRECTL_STAT] = 2,     [FIRECTL_TOP] = 0,     [FIRECTL_DRAIN] = 0,   [FIRECTL_RUNS] = 0,
        [FIRECTL_SHOW] = 1,     [FIRECTL_WATCH] = 1,   [FIRECTL_ADVISE] = 1,  [FIRECTL_EXPORT] = 1,
    };
    struct parse *parse = state->input;
    struct firectl_args *args = parse->args;

    if (args->command == FIRECTL_POINTS) {
        list_add(parse, &args->points, "%s", text);
        return parse->no_memory ? ENOMEM : 0;
    }
    if (args->input_count == inputs_max[args->command]) {
        argp_error(state, "unexpected argument '%s'", text);
        return EINVAL;
    }
    args->inputs[args->input_count++] = text;
    return 0;
}

/* Options that lists keep; true when `key` was one of them. */
static bool parse_list_option(struct parse *parse, int key, const char *text)
{
    struct firectl_args *args = parse->args;

    switch (key) {
    case KEY_SET: list_add(parse, &args->sets, "%s", text); return true;
    case KEY_TARGET: list_add(parse, &args->sets, "target=%s", text); return true;
    case KEY_STEPS: list_add(parse, &args->sets, "steps=%s", text); return true;
    case KEY_SEED: list_add(parse, &args->sets, "seed=%s", text); return true;
    case KEY_STATE_POLICY: list_add(parse, &args->sets, "state_policy=%s", text); return true;
    case KEY_INCLUDE: list_add(parse, &args->includes, "%s", text); return true;
    case KEY_EXCLUDE: list_add(parse, &args->excludes, "%s", text); return true;
    case KEY_TIE: list_add(parse, &args->ties, "%s", text); return true;
    case KEY_FAIL_IF: list_add(parse, &args->thresholds, "%s", text); return true;
    case KEY_LAYER: list_add(parse, &args->layers, "%s", text); return true;
    case KEY_STATISTIC: list_add(parse, &args->statistics, "%s", text); return true;
    case KEY_LABEL: list_add(parse, &args->labels, "%s", text); return true;
    default: return false;
    }
}

/* A whole number from 1. */
static error_t parse_count(const char *option, const char *text, uint32_t most,
                           struct argp_state *state, uint32_t *count)
{
    char *end = NULL;
    unsigned long value;

    errno = 0;
    value = strtoul(text, &end, 10);
    if (errno || end == text || *end || text[0] == '-' || !value || value > most) {
        argp_error(state, "%s must be 1 to %u, got '%s'", option, most, text);
        return EINVAL;
    }
    *count = (uint32_t)value;
    return 0;
}

static error_t parse_interval(const char *text, struct argp_state *state, double *seconds)
{
    char *end = NULL;
    const double value = strtod(text, &end);

    if (end == text || *end || !(value >= INTERVAL_S_MIN) || value > INTERVAL_S_MAX) {
        argp_error(state, "--interval must be %g to %g seconds, got '%s'", INTERVAL_S_MIN,
                   INTERVAL_S_MAX, text);
        return EINVAL;
    }
    *seconds = value;
    return 0;
}

/* Options about a run's history; ARGP_ERR_UNKNOWN when `key` is none of them. */
static error_t parse_run_option(int key, const char *text, struct argp_state *state)
{
    struct firectl_args *args = ((struct parse *)state->input)->args;

    switch (key) {
    case KEY_FROM: return parse_step("--from", text, state, &args->from_step);
    case KEY_TO: return parse_step("--to", text, state, &args->to_step);
    case KEY_WIDTH: return parse_count("--width", text, WIDTH_MAX, state, &args->width);
    case KEY_MOST: return parse_count("--limit", text, RUNS_MAX, state, &args->most);
    case KEY_FILTER: args->filter = text; return 0;
    case KEY_EVENTS: args->events = true; return 0;
    case KEY_FORMAT: args->format = text; return 0;
    case KEY_TITLE: args->title = text; return 0;
    case KEY_FRAMEWORK: args->framework = text; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Options of ping, top and drain; ARGP_ERR_UNKNOWN when `key` is none of them. */
static error_t parse_watch_option(int key, const char *text, struct argp_state *state)
{
    struct firectl_args *args = ((struct parse *)state->input)->args;

    switch (key) {
    case KEY_COUNT: return parse_count("--count", text, COUNT_MAX, state, &args->count);
    case KEY_INTERVAL: return parse_interval(text, state, &args->interval_s);
    case KEY_LIMIT: return parse_count("--limit", text, LIMIT_S_MAX, state, &args->limit_s);
    case KEY_LATENCY: args->latency = true; return 0;
    case KEY_BATCH: args->batch = true; return 0;
    default: return parse_run_option(key, text, state);
    }
}

/* Options about the daemon; ARGP_ERR_UNKNOWN when `key` is none of them. */
static error_t parse_remote_option(int key, const char *text, struct argp_state *state)
{
    struct firectl_args *args = ((struct parse *)state->input)->args;

    switch (key) {
    case KEY_LOCAL: args->local = true; return 0;
    case KEY_ADDR: args->remote.address = text; return 0;
    case KEY_TOKEN: args->remote.token = text; return 0;
    case KEY_TENANT: args->remote.tenant = text; return 0;
    case KEY_CA: args->remote.ca_file = text; return 0;
    case KEY_CERT: args->remote.certificate_file = text; return 0;
    case KEY_KEY: args->remote.key_file = text; return 0;
    case KEY_SERVER_NAME: args->remote.server_name = text; return 0;
    case KEY_PRIORITY: return parse_priority(text, state, &args->remote.priority);
    case KEY_RUN: args->remote.run = text; return 0;
    case KEY_STEP:
        args->step_given = true;
        return parse_step("--step", text, state, &args->remote.step);
    default: return parse_watch_option(key, text, state);
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct parse *parse = state->input;
    struct firectl_args *args = parse->args;

    if (parse_list_option(parse, key, text))
        return parse->no_memory ? ENOMEM : 0;
    switch (key) {
    case KEY_OUTPUT: args->output = text; return 0;
    case KEY_PRESET: args->preset = text; return 0;
    case KEY_ARCH: return parse_arch(text, state, args, false);
    case KEY_ONLY: return parse_arch(text, state, args, true);
    case KEY_SPECTRUM: args->spectrum = true; return 0;
    case KEY_RESIDUAL: args->residual = true; return 0;
    case KEY_INIT: args->init = text; return 0;
    case KEY_ACTIVATIONS: args->activations = text; return 0;
    case KEY_GRADIENTS: args->gradients = text; return 0;
    case KEY_STATE: args->state = text; return 0;
    case KEY_STATE_OUT: args->state_out = text; return 0;
    case KEY_THREADS: return parse_threads(text, state, &args->threads);
    case KEY_PATH: args->path = text; return 0;
    case KEY_DEADLINE: return parse_deadline(text, state, &args->deadline_s);
    case KEY_PER_MATRIX: args->per_matrix = true; return 0;
    case KEY_JSON: args->json = true; return 0;
    case KEY_DRY_RUN: args->dry_run = true; return 0;
    case KEY_NO_COLOR: args->no_color = true; return 0;
    case KEY_QUIET: args->quiet = true; return 0;
    case ARGP_KEY_ARG: return parse_argument(text, state);
    default: return parse_remote_option(key, text, state);
    }
}

/* The row of option `name` (an unambiguous beginning is enough, as getopt has it), or ROW_COUNT. */
static size_t find_row(enum firectl_command command, const char *name, size_t length)
{
    size_t found = ROW_COUNT;

    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (!row_applies(i, command) || strncmp(rows[i].name, name, length) != 0)
            continue;
        if (rows[i].name[length] == '\0')
            return i;
        found = i; /* an ambiguous one is argp's to report */
    }
    return found;
}

/* argp only says that an option is unknown; this says which was meant. */
static enum firectl_exit check_options(enum firectl_command command, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *name = argv[i] + 2;
        const char *names[ROW_COUNT + 1];
        const char *near;
        char word[64];
        size_t count = 0;
        size_t row;

        if (strncmp(argv[i], "--", 2) != 0)
            continue;
        snprintf(word, sizeof(word), "%.*s", (int)strcspn(name, "="), name);
        row = find_row(command, word, strlen(word));
        if (row < ROW_COUNT) {
            i += rows[row].value && !strchr(name, '=');
            continue;
        }
        if (strcmp(word, "help") == 0 || strcmp(word, "usage") == 0 || strcmp(word, "version") == 0)
            continue;
        for (size_t r = 0; r < ROW_COUNT; r++) {
            if (row_applies(r, command))
                names[count++] = rows[r].name;
        }
        near = fire_nearest_name(word, names, count);
        firectl_say("%s has no option '--%s'%s%s%s; firectl %s --help lists them",
                    firectl_command_name(command), word, near ? ", did you mean '--" : "",
                    near ? near : "", near ? "'?" : "", firectl_command_name(command));
        return FIRECTL_USAGE;
    }
    return FIRECTL_DONE;
}

enum firectl_exit firectl_args_parse(enum firectl_command command, int argc, char **argv,
                                     struct firectl_args *args)
{
    struct argp_option options[ROW_COUNT + 1] = { { 0 } };
    const struct argp argp = {
        .options = options,
        .parser = parse_option,
        .args_doc = manuals[command].arguments,
        .doc = manuals[command].text,
    };
    struct parse parse = { .args = args };
    char program[64];
    enum firectl_exit code;
    size_t used = 0;
    error_t failure;

    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (!row_applies(i, command))
            continue;
        options[used++] = (struct argp_option){
            .name = rows[i].name, .key = rows[i].key, .arg = rows[i].value, .doc = rows[i].meaning
        };
    }
    args->command = command;
    code = check_options(command, argc, argv);
    if (code != FIRECTL_DONE)
        return code;
    snprintf(program, sizeof(program), "firectl %s", argv[0]);
    argv[0] = program;
    argp_err_exit_status = FIRECTL_USAGE;
    argp_program_version = "firectl " FIRE_VERSION;
    failure = argp_parse(&argp, argc, argv, 0, NULL, &parse);
    if (failure) {
        firectl_say("could not read the arguments: %s", strerror(failure));
        return failure == ENOMEM ? FIRECTL_FAILED : FIRECTL_USAGE;
    }
    return firectl_args_check(args);
}
