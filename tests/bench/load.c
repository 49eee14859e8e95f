/* fire_bench_load: many callers of one gRPC method, from one process.
 *
 * Each caller has a connection of its own and sends the same prepared message again and again:
 * as soon as the answer is there (closed loop), every so often (--every), or all callers together
 * at a fixed rate whatever comes back (--rate). Answers are counted by status; latencies are kept
 * whole. The result is one JSON object on stdout. */
#include <argp.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CODE_COUNT        17
#define CALLERS_MAX       4096
#define MESSAGE_BYTES_MAX (512 << 20)
#define NS_PER_S          1000000000ull

struct settings {
    const char *address;
    const char *method;
    const char *file;
    const char *tenant;
    uint32_t callers;
    uint32_t outstanding_max; /* of all callers, with --rate and --every */
    double seconds;
    double warm_up_s;
    double every_ms;
    double rate;
    double deadline_ms;
    double backoff_ms;       /* closed loop: wait so long after a refusal; -1: what it asks for */
    uint64_t calls;          /* 0: until the time is over */
    uint32_t cancel_percent; /* of calls, cancelled after a random part of the deadline */
};

struct load_call {
    grpc_call *call;
    uint32_t caller;
    uint64_t started_ns;
    grpc_metadata_array initial;
    grpc_metadata_array trailing;
    grpc_byte_buffer *request; /* core takes the slices out of it */
    grpc_byte_buffer *answer;
    grpc_status_code code;
    grpc_slice details;
    struct load_call *next; /* free list */
};

struct load {
    struct settings settings;
    grpc_completion_queue *queue;
    grpc_channel *channels[CALLERS_MAX];
    grpc_slice method;
    grpc_byte_buffer *request;
    struct load_call *free_calls;
    uint64_t *resume_ns; /* closed loop: when a caller that was refused goes on */
    bool *busy;
    uint32_t outstanding;
    uint64_t begin_ns; /* of counting */
    uint64_t end_ns;   /* of sending */
    uint64_t started;
    uint64_t missed; /* sends left out because too many were outstanding */
    uint64_t codes[CODE_COUNT];
    uint64_t ok_in_time; /* answered while time was counted: what the rate is made of */
    uint64_t answer_bytes;
    uint64_t refused_with_hint;
    uint64_t refused_without_hint;
    double *latencies_ms;
    size_t latency_count;
    size_t latency_room;
    uint64_t random;
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "fire_bench_load: %s\n", what);
    exit(1);
}

static uint64_t next_random(struct load *load)
{
    load->random ^= load->random << 13;
    load->random ^= load->random >> 7;
    load->random ^= load->random << 17;
    return load->random;
}

static grpc_byte_buffer *read_request(const char *path)
{
    FILE *file = fopen(path, "rb");
    grpc_byte_buffer *buffer;
    grpc_slice slice;
    long bytes;

    if (!file || fseek(file, 0, SEEK_END) != 0 || (bytes = ftell(file)) < 0)
        die("the request file cannot be read");
    rewind(file);
    slice = grpc_slice_malloc((size_t)bytes);
    if (fread(GRPC_SLICE_START_PTR(slice), 1, (size_t)bytes, file) != (size_t)bytes)
        die("the request file is short");
    fclose(file);
    buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static void open_channels(struct load *load)
{
    grpc_arg values[] = {
        { .type = GRPC_ARG_INTEGER,
          .key = (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
          .value.integer = MESSAGE_BYTES_MAX },
        { .type = GRPC_ARG_INTEGER,
          .key = (char *)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
          .value.integer = 1 },
        { .type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_RETRIES, .value.integer = 0 },
    };
    const grpc_channel_args arguments = { sizeof(values) / sizeof(values[0]), values };
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();

    for (uint32_t i = 0; i < load->settings.callers; i++) {
        load->channels[i] = grpc_channel_create(load->settings.address, credentials, &arguments);
        if (!load->channels[i])
            die("a channel could not be made");
    }
    grpc_channel_credentials_release(credentials);
}

static gpr_timespec deadline_of(const struct load *load)
{
    if (load->settings.deadline_ms <= 0)
        return gpr_inf_future(GPR_CLOCK_REALTIME);
    return gpr_time_add(
        gpr_now(GPR_CLOCK_REALTIME),
        gpr_time_from_micros((int64_t)(load->settings.deadline_ms * 1e3), GPR_TIMESPAN));
}

static struct load_call *take_call(struct load *load)
{
    struct load_call *call = load->free_calls;

    if (call)
        load->free_calls = call->next;
    else
        call = malloc(sizeof(*call));
    if (!call)
        die("no memory");
    memset(call, 0, sizeof(*call));
    return call;
}

static void send_call(struct load *load, uint32_t caller)
{
    struct load_call *call = take_call(load);
    grpc_metadata tenant = { .key = grpc_slice_from_static_string("x-fired-tenant") };
    grpc_op ops[6] = {
        { .op = GRPC_OP_SEND_INITIAL_METADATA },
        { .op = GRPC_OP_SEND_MESSAGE, .flags = GRPC_WRITE_NO_COMPRESS },
        { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT },
        { .op = GRPC_OP_RECV_INITIAL_METADATA },
        { .op = GRPC_OP_RECV_MESSAGE },
        { .op = GRPC_OP_RECV_STATUS_ON_CLIENT },
    };

    call->caller = caller;
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    call->call = grpc_channel_create_call(load->channels[caller], NULL, GRPC_PROPAGATE_DEFAULTS,
                                          load->queue, load->method, NULL, deadline_of(load), NULL);
    if (load->settings.tenant) {
        tenant.value = grpc_slice_from_static_string(load->settings.tenant);
        ops[0].data.send_initial_metadata.count = 1;
        ops[0].data.send_initial_metadata.metadata = &tenant;
    }
    call->request = grpc_byte_buffer_copy(load->request);
    ops[1].data.send_message.send_message = call->request;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    ops[4].data.recv_message.recv_message = &call->answer;
    ops[5].data.recv_status_on_client.trailing_metadata = &call->trailing;
    ops[5].data.recv_status_on_client.status = &call->code;
    ops[5].data.recv_status_on_client.status_details = &call->details;
    call->started_ns = now_ns();
    if (grpc_call_start_batch(call->call, ops, 6, call, NULL) != GRPC_CALL_OK)
        die("a call could not be started");
    load->busy[caller] = true;
    load->outstanding++;
    load->started++;
    if (load->settings.cancel_percent && next_random(load) % 100 < load->settings.cancel_percent)
        grpc_call_cancel(call->call, NULL);
}

/* Milliseconds that google.rpc.RetryInfo in the details asks for; -1: there is none. The bytes are
 * searched for its type name; behind it follows Any.value { Duration { seconds, nanos } }. */
static double retry_hint_ms(const grpc_metadata_array *trailing)
{
    static const char name[] = "google.rpc.RetryInfo";

    for (size_t i = 0; i < trailing->count; i++) {
        const grpc_slice *value = &trailing->metadata[i].value;
        const uint8_t *found;
        const uint8_t *end;
        double seconds = 0.0;

        if (grpc_slice_str_cmp(trailing->metadata[i].key, "grpc-status-details-bin") != 0)
            continue;
        end = GRPC_SLICE_END_PTR(*value);
        found =
            memmem(GRPC_SLICE_START_PTR(*value), GRPC_SLICE_LENGTH(*value), name, sizeof(name) - 1);
        if (!found)
            continue;
        found += sizeof(name) - 1 + 4; /* value key and length, RetryInfo's key and length */
        for (int field = 0; field < 2 && found < end; field++) {
            const bool nanos = (*found++ & 0xf8) == 0x10;
            uint64_t number = 0;

            for (int shift = 0; found < end && shift < 64; shift += 7) {
                number |= (uint64_t)(*found & 0x7f) << shift;
                if (!(*found++ & 0x80))
                    break;
            }
            seconds += nanos ? (double)number / 1e9 : (double)number;
        }
        return seconds * 1e3;
    }
    return -1.0;
}

static void keep_latency(struct load *load, double ms)
{
    if (load->latency_count == load->latency_room) {
        load->latency_room = load->latency_room ? 2 * load->latency_room : 65536;
        load->latencies_ms =
            realloc(load->latencies_ms, load->latency_room * sizeof(*load->latencies_ms));
        if (!load->latencies_ms)
            die("no memory");
    }
    load->latencies_ms[load->latency_count++] = ms;
}

static void count_call(struct load *load, const struct load_call *call, uint64_t now,
                       double hint_ms)
{
    if (call->code == GRPC_STATUS_OK && now >= load->begin_ns &&
        (load->settings.calls || now <= load->end_ns))
        load->ok_in_time++;
    if (call->started_ns < load->begin_ns)
        return;
    if ((uint32_t)call->code < CODE_COUNT)
        load->codes[call->code]++;
    if (call->code == GRPC_STATUS_OK)
        keep_latency(load, (double)(now - call->started_ns) / 1e6);
    else if (call->code == GRPC_STATUS_RESOURCE_EXHAUSTED && hint_ms >= 0)
        load->refused_with_hint++;
    else if (call->code == GRPC_STATUS_RESOURCE_EXHAUSTED)
        load->refused_without_hint++;
    if (call->answer)
        load->answer_bytes += grpc_byte_buffer_length(call->answer);
}

static void end_call(struct load *load, struct load_call *call)
{
    const uint64_t now = now_ns();
    const double hint_ms = retry_hint_ms(&call->trailing);
    double wait_ms = 0.0;

    count_call(load, call, now, hint_ms);
    if (call->code != GRPC_STATUS_OK)
        wait_ms = load->settings.backoff_ms >= 0 ? load->settings.backoff_ms : hint_ms;
    load->resume_ns[call->caller] = now + (uint64_t)((wait_ms > 0 ? wait_ms : 0) * 1e6);
    load->busy[call->caller] = false;
    load->outstanding--;
    grpc_byte_buffer_destroy(call->request);
    if (call->answer)
        grpc_byte_buffer_destroy(call->answer);
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->details);
    grpc_call_unref(call->call);
    call->next = load->free_calls;
    load->free_calls = call;
}

/* Sends what is due at `now`; returns when to look again. */
static uint64_t send_closed(struct load *load, uint64_t now)
{
    uint64_t next = now + NS_PER_S;

    for (uint32_t i = 0; i < load->settings.callers; i++) {
        if (load->busy[i])
            continue;
        if (load->settings.calls && load->started >= load->settings.calls)
            break;
        if (load->resume_ns[i] <= now)
            send_call(load, i);
        else if (load->resume_ns[i] < next)
            next = load->resume_ns[i];
    }
    return next;
}

static uint64_t send_paced(struct load *load, uint64_t now, uint64_t *due_ns, uint64_t step_ns)
{
    while (*due_ns <= now) {
        if (load->outstanding < load->settings.outstanding_max)
            send_call(load, (uint32_t)(load->started % load->settings.callers));
        else
            load->missed++;
        *due_ns += step_ns;
    }
    return *due_ns;
}

static bool is_over(const struct load *load, uint64_t now)
{
    return now >= load->end_ns || (load->settings.calls && load->started >= load->settings.calls);
}

static void run(struct load *load)
{
    const struct settings *settings = &load->settings;
    const double step_s = settings->rate > 0 ? 1.0 / settings->rate : settings->every_ms / 1e3;
    uint64_t due_ns = now_ns();
    uint64_t now = due_ns;

    load->begin_ns = now + (uint64_t)(settings->warm_up_s * 1e9);
    load->end_ns = load->begin_ns + (uint64_t)(settings->seconds * 1e9);
    while (!is_over(load, now) || load->outstanding) {
        uint64_t next = now + NS_PER_S;
        grpc_event event;

        if (!is_over(load, now))
            next = step_s > 0 ? send_paced(load, now, &due_ns, (uint64_t)(step_s * 1e9))
                              : send_closed(load, now);
        now = now_ns();
        event = grpc_completion_queue_next(
            load->queue,
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                         gpr_time_from_nanos(next > now ? (int64_t)(next - now) : 0, GPR_TIMESPAN)),
            NULL);
        if (event.type == GRPC_OP_COMPLETE)
            end_call(load, event.tag);
        now = now_ns();
    }
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static double percentile(const struct load *load, double share)
{
    if (!load->latency_count)
        return 0.0;
    return load->latencies_ms[(size_t)(share * (double)(load->latency_count - 1) + 0.5)];
}

static void report(struct load *load, double seconds)
{
    qsort(load->latencies_ms, load->latency_count, sizeof(double), compare_doubles);
    printf("{\"seconds\": %.6f, \"started\": %" PRIu64 ", \"ok\": %" PRIu64 ", \"missed\": %" PRIu64
           ", \"per_second\": %.3f, \"answer_bytes\": %" PRIu64 ", \"hints\": %" PRIu64
           ", \"without_hint\": %" PRIu64,
           seconds, load->started, load->codes[0], load->missed, (double)load->ok_in_time / seconds,
           load->answer_bytes, load->refused_with_hint, load->refused_without_hint);
    printf(", \"p50_ms\": %.4f, \"p90_ms\": %.4f, \"p99_ms\": %.4f, \"max_ms\": %.4f, \"codes\": {",
           percentile(load, 0.5), percentile(load, 0.9), percentile(load, 0.99),
           percentile(load, 1.0));
    for (int code = 0, first = 1; code < CODE_COUNT; code++) {
        if (load->codes[code])
            printf("%s\"%d\": %" PRIu64, first ? "" : ", ", code, load->codes[code]);
        first = first && !load->codes[code];
    }
    printf("}}\n");
}

static const struct argp_option options[] = {
    { "callers", 'c', "N", 0, "connections, each with one call at a time (1)", 0 },
    { "seconds", 's', "S", 0, "how long to send (1)", 0 },
    { "warm-up", 'w', "S", 0, "before that, not counted (0)", 0 },
    { "calls", 'n', "N", 0, "send so many instead", 0 },
    { "every", 'e', "MS", 0, "send one every MS, whatever comes back", 0 },
    { "rate", 'r', "N", 0, "send N a second over all callers, whatever comes back", 0 },
    { "outstanding", 'o', "N", 0, "with --every or --rate: most calls at once (1024)", 0 },
    { "deadline", 'd', "MS", 0, "of each call (none)", 0 },
    { "backoff", 'b', "MS", 0, "closed loop: wait after a refusal (0; -1: as it asks)", 0 },
    { "tenant", 't', "NAME", 0, "x-fired-tenant", 0 },
    { "cancel", 'x', "PERCENT", 0, "cancel so many of the calls", 0 },
    { 0 },
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct settings *settings = state->input;

    switch (key) {
    case 'c': settings->callers = (uint32_t)strtoul(text, NULL, 10); break;
    case 's': settings->seconds = strtod(text, NULL); break;
    case 'w': settings->warm_up_s = strtod(text, NULL); break;
    case 'n': settings->calls = strtoull(text, NULL, 10); break;
    case 'e': settings->every_ms = strtod(text, NULL); break;
    case 'r': settings->rate = strtod(text, NULL); break;
    case 'o': settings->outstanding_max = (uint32_t)strtoul(text, NULL, 10); break;
    case 'd': settings->deadline_ms = strtod(text, NULL); break;
    case 'b': settings->backoff_ms = strtod(text, NULL); break;
    case 't': settings->tenant = text; break;
    case 'x': settings->cancel_percent = (uint32_t)strtoul(text, NULL, 10); break;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            settings->address = text;
        else if (state->arg_num == 1)
            settings->method = text;
        else if (state->arg_num == 2)
            settings->file = text;
        else
            argp_usage(state);
        break;
    case ARGP_KEY_END:
        if (state->arg_num != 3 || settings->callers < 1 || settings->callers > CALLERS_MAX)
            argp_usage(state);
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct load load = {
        .settings = { .callers = 1, .seconds = 1.0, .outstanding_max = 1024 },
        .random = 88172645463325252ull,
    };
    const struct argp parser = {
        .options = options,
        .parser = parse,
        .args_doc = "ADDRESS METHOD FILE",
        .doc = "Calls one gRPC method with the message in FILE, from many callers.",
    };
    uint64_t ended_ns;

    argp_parse(&parser, argc, argv, 0, NULL, &load.settings);
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
    (void)mallopt(M_TOP_PAD, 16 << 20);
    grpc_init();
    load.queue = grpc_completion_queue_create_for_next(NULL);
    load.method = grpc_slice_from_static_string(load.settings.method);
    load.request = read_request(load.settings.file);
    load.resume_ns = calloc(load.settings.callers, sizeof(*load.resume_ns));
    load.busy = calloc(load.settings.callers, sizeof(*load.busy));
    if (!load.resume_ns || !load.busy)
        die("no memory");
    open_channels(&load);
    run(&load);
    ended_ns = now_ns();
    if (!load.settings.calls && load.end_ns < ended_ns)
        ended_ns = load.end_ns;
    report(&load, (double)(ended_ns - load.begin_ns) / 1e9);
    return 0;
}
