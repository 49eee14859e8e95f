/* request_feed: the block of a tensor, the bytes that go into it, and the jobs that are made of it.
 *
 * The block is laid out when the first bytes come, on a worker: a tensor may hold many thousands of
 * matrices. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "request.h"
#include "request_parts.h"

/* --- bytes ------------------------------------------------------------------------------------ */

uint64_t request_tensor_block_bytes(const struct request_tensor *tensor)
{
    return tensor->parts->block_bytes;
}

enum fire_status request_tensor_reserve(struct request_tensor *tensor, struct arena *arena,
                                        struct fire_error *error)
{
    const uint64_t bytes = tensor->parts->block_bytes;

    FIRE_ASSERT(!tensor->block);
    if (bytes > arena_bytes(arena))
        return fire_fail(error, FIRE_BAD_REQUEST, tensor->path,
                         "tensor '%.100s' needs %" PRIu64 " bytes with its matrices, but the "
                         "daemon has %" PRIu64 " for all slots: send it in parts, or raise "
                         "memory_budget_bytes",
                         tensor->name, bytes, arena_bytes(arena));
    tensor->block = arena_alloc(arena, bytes);
    if (!tensor->block)
        return fire_fail(error, FIRE_BUSY, tensor->path,
                         "there is no room for the %" PRIu64 " bytes of tensor '%.100s' now; try "
                         "again later",
                         bytes, tensor->name);
    tensor->arena = arena;
    return FIRE_OK;
}

static struct fire_spectra *spectra_clear(struct fire_spectra *spectra)
{
    spectra->before.count = spectra->after.count = 0;
    return spectra;
}

/* Every part's matrices become entries next to each other, in view order. */
static void lay_entries(struct request_tensor *tensor)
{
    const struct fire_work *work = &tensor->work;
    struct request_parts *parts = tensor->parts;
    uint64_t next[FIRE_SPLIT_MAX] = { 0 };
    uint8_t *weights = parts->weights;

    FIRE_ASSERT(work->part_count <= FIRE_SPLIT_MAX);
    for (uint32_t i = 1; i < work->part_count; i++)
        next[i] = next[i - 1] + work->parts[i - 1].matrices;
    for (uint64_t v = 0; v < work->view_count; v++) {
        struct fire_slot *entry;
        struct fire_view view;
        uint32_t part;

        fire_view_at(&tensor->shape, &tensor->options, v, &view);
        part = fire_work_part_of(work, &view);
        parts->slots[v] = part == UINT32_MAX ? NULL : weights;
        fire_result_init(&parts->results[v]);
        if (part == UINT32_MAX)
            continue;
        entry = &parts->entries[next[part]];
        *entry = (struct fire_slot){ .weights = weights,
                                     .result = &parts->results[v],
                                     .seed = fire_work_seed(&tensor->options, tensor->name, v) };
        if (parts->has_spectra)
            entry->spectra = spectra_clear(&parts->spectra[next[part]]);
        next[part]++;
        weights += fire_plan_slot_bytes(&work->parts[part].plan);
    }
    FIRE_ASSERT(weights == parts->weights + parts->weights_bytes);
}

static void lay_jobs(struct request_tensor *tensor)
{
    const struct fire_work *work = &tensor->work;
    struct request_parts *parts = tensor->parts;
    struct fire_slot *entries = parts->entries;
    uint32_t job = 0;

    for (uint32_t i = 0; i < work->part_count; i++) {
        const struct fire_work_part *part = &work->parts[i];
        const uint32_t most = request_matrices_a_job(&part->plan);

        for (uint64_t done = 0; done < part->matrices; done += most) {
            const uint64_t left = part->matrices - done;

            parts->jobs[job] = (struct request_job){
                .job = { .plan = &part->plan,
                         .slots = entries + done,
                         .matrix_count = (uint32_t)(left < most ? left : most) },
                .tensor = tensor,
            };
            job++;
        }
        entries += part->matrices;
    }
    FIRE_ASSERT(job == parts->job_count);
}

static void lay_out(struct request_tensor *tensor)
{
    struct request_parts *parts = tensor->parts;
    uint8_t *block = tensor->block;

    parts->laid_out = true;
    if (tensor->role != REQUEST_WEIGHT) {
        parts->bytes = block;
        return;
    }
    parts->weights = block;
    parts->bytes = block + parts->bytes_offset;
    parts->slots = (void **)(block + parts->slots_offset);
    parts->entries = (struct fire_slot *)(block + parts->entries_offset);
    parts->results = (struct fire_result *)(block + parts->results_offset);
    parts->jobs = (struct request_job *)(block + parts->jobs_offset);
    parts->spectra = (struct fire_spectra *)(block + parts->spectra_offset);
    lay_entries(tensor);
    lay_jobs(tensor);
}

static enum fire_status not_finite(const struct request_tensor *tensor, double value,
                                   uint64_t index, struct fire_error *error)
{
    fire_work_describe_element(tensor->name, &tensor->shape, value, index, error);
    memcpy(error->field, tensor->path, sizeof(tensor->path));
    return FIRE_BAD_REQUEST;
}

/* `count` whole elements, the next of the tensor. */
static enum fire_status gather(struct request_tensor *tensor, uint64_t first, uint64_t count,
                               const uint8_t *bytes, struct fire_error *error)
{
    uint64_t bad = 0;

    if (count == 0 || tensor->work.matrices == 0)
        return FIRE_OK;
    if (tensor->parts->verbatim &&
        fire_work_gather_flat(tensor->dtype, count, bytes,
                              tensor->parts->weights + first * fire_dtype_bytes(tensor->dtype)))
        return FIRE_OK;
    if (fire_work_gather(&tensor->shape, &tensor->options, tensor->dtype,
                         tensor->work.parts[0].plan.compute, first, count, bytes,
                         tensor->parts->slots, &bad) == FIRE_OK)
        return FIRE_OK;
    return not_finite(tensor, fire_dtype_element(tensor->dtype, bytes, bad - first), bad, error);
}

/* Pieces end where the network likes: an element cut in two waits for its rest. */
static enum fire_status feed_elements(struct request_tensor *tensor, struct request_run *run,
                                      const uint8_t *bytes, size_t count, struct fire_error *error)
{
    struct request_parts *parts = tensor->parts;
    const size_t size = fire_dtype_bytes(tensor->dtype);
    enum fire_status status = FIRE_OK;
    size_t whole;

    if (parts->keep_raw)
        memcpy(parts->bytes + run->at, bytes, count);
    while (run->carry_bytes > 0 && count > 0 && run->carry_bytes < size) {
        run->carry[run->carry_bytes++] = *bytes++;
        run->at++;
        count--;
    }
    if (run->carry_bytes == size) {
        status = gather(tensor, run->at / size - 1, 1, run->carry, error);
        run->carry_bytes = 0;
    }
    whole = count / size;
    if (status == FIRE_OK)
        status = gather(tensor, run->at / size, whole, bytes, error);
    if (count > whole * size) {
        run->carry_bytes = (uint32_t)(count - whole * size);
        memcpy(run->carry, bytes + whole * size, run->carry_bytes);
    }
    run->at += count;
    return status;
}

void request_feed_begin(struct request_tensor *tensor)
{
    FIRE_ASSERT(tensor->block);
    if (!tensor->parts->laid_out)
        lay_out(tensor);
}

enum fire_status request_feed_run(struct request_tensor *tensor, struct request_run *run,
                                  const uint8_t *bytes, size_t count, struct fire_error *error)
{
    FIRE_ASSERT(tensor->parts->laid_out);
    if (count > tensor->total_bytes - run->at)
        return fire_fail(error, FIRE_BAD_REQUEST, tensor->path,
                         "more than the %" PRIu64 " bytes of tensor '%.100s' were sent; send what "
                         "shape and dtype say",
                         tensor->total_bytes, tensor->name);
    if (tensor->role == REQUEST_WEIGHT)
        return feed_elements(tensor, run, bytes, count, error);
    memcpy(tensor->parts->bytes + run->at, bytes, count);
    run->at += count;
    return FIRE_OK;
}

void request_feed_end(struct request_tensor *tensor)
{
    tensor->received_bytes = tensor->total_bytes;
}

uint64_t request_feed_grain(const struct request_tensor *tensor)
{
    if (tensor->role != REQUEST_WEIGHT)
        return 1;
    return fire_work_gather_grain(&tensor->shape, &tensor->options) *
           fire_dtype_bytes(tensor->dtype);
}

uint64_t request_run_begin(const struct request_tensor *tensor, uint32_t index, uint32_t count)
{
    const uint64_t grain = request_feed_grain(tensor);

    if (index >= count)
        return tensor->total_bytes;
    return tensor->total_bytes / count * index / grain * grain;
}

enum fire_status request_feed(struct request_tensor *tensor, const uint8_t *bytes, size_t count,
                              struct fire_error *error)
{
    struct request_run *run = &tensor->parts->run;
    enum fire_status status;

    request_feed_begin(tensor);
    status = request_feed_run(tensor, run, bytes, count, error);
    tensor->received_bytes = run->at;
    return status;
}

/* --- jobs ------------------------------------------------------------------------------------- */

uint32_t request_job_count(const struct request_tensor *tensor)
{
    return tensor->parts->job_count;
}

struct job *request_job(struct request_tensor *tensor, uint32_t index)
{
    FIRE_ASSERT(index < tensor->parts->job_count);
    FIRE_ASSERT(tensor->parts->laid_out);
    return &tensor->parts->jobs[index].job;
}

enum fire_status request_check_workspace(const struct request_tensor *tensor,
                                         struct scheduler *scheduler, uint64_t bytes_max,
                                         struct fire_error *error)
{
    for (uint32_t i = 0; i < tensor->work.part_count; i++) {
        const struct fire_work_part *part = &tensor->work.parts[i];
        const uint64_t bytes = scheduler_workspace_bytes(scheduler, &part->plan);

        if (bytes > bytes_max)
            return fire_fail(error, FIRE_BAD_REQUEST, tensor->path,
                             "a %u x %u matrix takes %" PRIu64 " bytes to compute, but the daemon "
                             "may use %" PRIu64 " for that: raise memory_budget_bytes or "
                             "workspace_percent, or use --local",
                             part->rows, part->cols, bytes, bytes_max);
    }
    return FIRE_OK;
}

void request_estimate(const struct request_tensor *tensor, struct scheduler *scheduler,
                      const struct tenant *tenant, double *wait_s, double *own_s)
{
    *wait_s = 0;
    *own_s = 0;
    for (uint32_t i = 0; i < tensor->work.part_count; i++) {
        const struct fire_work_part *part = &tensor->work.parts[i];
        const double wait = scheduler_estimate_s(scheduler, tenant, &part->plan, 0);

        if (!isfinite(wait)) {
            /* No device at all: submitting will say so. */
            *wait_s = 0;
            *own_s = 0;
            return;
        }
        *wait_s = fmax(*wait_s, wait);
        *own_s += fmax(
            0.0,
            scheduler_estimate_s(scheduler, tenant, &part->plan, (uint32_t)part->matrices) - wait);
    }
}

static double milliseconds_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-6 : 0.0;
}

static void job_is_done(struct job *job, enum fire_status status)
{
    struct request_job *own = (struct request_job *)job;
    struct request_tensor *tensor = own->tensor;

    FIRE_ASSERT(own->pending);
    own->pending = false;
    tensor->jobs_left--;
    if (status != FIRE_OK) {
        struct fire_error error = { 0 };

        fire_fail(&error, status, tensor->path, "tensor '%.100s' was not computed: %s; try again",
                  tensor->name,
                  status == FIRE_DEVICE_LOST ? "the device was lost" : fire_status_name(status));
        request_tensor_fail(tensor, &error, NULL);
    }
    tensor->batch_id = job->batch_id;
    tensor->batch_size = job->batch_size;
    tensor->close_reason = job->close_reason;
    tensor->queue_ms = milliseconds_between(job->submitted_ns, job->started_ns);
    tensor->compute_ms = milliseconds_between(job->started_ns, job->finished_ns);
    if (tensor->jobs_left == 0)
        own->done(tensor);
}

enum fire_status request_submit(struct request_tensor *tensor,
                                const struct request_submission *submission,
                                struct fire_error *error)
{
    struct request_parts *parts = tensor->parts;

    FIRE_ASSERT(tensor->received_bytes == tensor->total_bytes);
    for (uint32_t i = 0; i < parts->job_count; i++) {
        struct request_job *own = &parts->jobs[i];
        enum fire_status status;

        own->done = submission->done;
        own->job.tenant = submission->tenant;
        own->job.priority = submission->priority;
        own->job.deadline_ns = submission->deadline_ns;
        own->job.end_of_set = submission->end_of_set;
        own->job.alone = submission->alone;
        own->job.call_id = submission->call_id;
        own->job.done = job_is_done;
        own->job.data = tensor;
        own->pending = true;
        tensor->jobs_left++;
        status = scheduler_submit(submission->scheduler, &own->job, error);
        if (status != FIRE_OK) {
            own->pending = false;
            tensor->jobs_left--;
            request_cancel(tensor, submission->scheduler);
            return status;
        }
    }
    return FIRE_OK;
}

void request_end_set(struct request_tensor *tensor, struct scheduler *scheduler)
{
    struct request_parts *parts = tensor->parts;

    for (uint32_t i = 0; i < parts->job_count; i++) {
        if (parts->jobs[i].pending)
            scheduler_end_set(scheduler, &parts->jobs[i].job);
    }
}

void request_cancel(struct request_tensor *tensor, struct scheduler *scheduler)
{
    struct request_parts *parts = tensor->parts;

    for (uint32_t i = 0; tensor->jobs_left > 0 && i < parts->job_count; i++) {
        if (!parts->jobs[i].pending || !scheduler_cancel(scheduler, &parts->jobs[i].job))
            continue;
        parts->jobs[i].pending = false;
        tensor->jobs_left--;
    }
}
