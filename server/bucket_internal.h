/* bucket_internal: the lists that bucket.c keeps and the scheduler chooses from.
 *
 * A lane is the waiting jobs of one tenant and class in one bucket, oldest first (jobs whose last
 * safe moment has come stand before them). It exists while it is not empty, and is in two lists:
 * its bucket's and its tenant's. */
#ifndef FIRED_BUCKET_INTERNAL_H
#define FIRED_BUCKET_INTERNAL_H

#include "bucket.h"
#include "cost.h"

struct lane {
    struct bucket *bucket;
    struct tenant *tenant;
    enum job_priority priority;
    struct job *first;
    struct job *last;
    uint32_t waiting;  /* matrices */
    uint32_t critical; /* jobs */
    struct lane *tenant_next;
    struct lane *tenant_previous;
    struct lane *bucket_next;
    struct lane *bucket_previous;
    struct lane *hash_next; /* also of the list of free lanes */
};

struct bucket {
    struct fire_plan plan;
    struct bucket *hash_next;
    struct bucket *empty_next; /* while nothing of it waits or runs */
    struct bucket *empty_previous;
    struct lane *lanes;
    uint32_t lane_count;
    uint32_t waiting; /* matrices */
    uint32_t running; /* batches */
    /* Waiting jobs that close it. */
    uint32_t end_of_set;
    uint32_t ripe;
    uint32_t critical;
    /* What the scheduler knows about its speed. */
    double factor;   /* measured time against that of its class */
    double matrix_s; /* estimated device seconds of a matrix in a full batch */
    double overhead_s;
    uint32_t granule;        /* cost_granule() */
    uint32_t company;        /* cost_company() */
    uint64_t company_ns;     /* how long a job waits for it; 0: not at all */
    uint32_t efficient_size; /* matrices at which throughput stops rising */
    uint32_t size_max;       /* most matrices of a batch; less after the device had no memory */
    uint64_t batches;
    uint64_t matrices;
};

struct buckets {
    struct bucket *table; /* buckets_max of them, `count` in use */
    uint32_t buckets_max;
    uint32_t count;
    struct bucket **heads; /* by digest */
    uint32_t head_mask;
    struct bucket *empty_first; /* empty longest */
    struct bucket *empty_last;

    struct lane *lanes; /* jobs_max of them, `lane_count` ever used */
    uint32_t lanes_max;
    uint32_t lane_count;
    struct lane *lane_free;
    struct lane **lane_heads;
    uint32_t lane_mask;

    uint64_t jobs;    /* waiting */
    uint64_t waiting; /* matrices */
    double waiting_s; /* estimated device seconds of them */
};

/* The bucket of a plan, the lane of a tenant and class; NULL: there is none. */
struct bucket *buckets_lookup(const struct buckets *buckets, const struct fire_plan *plan);
struct lane *buckets_lane(const struct buckets *buckets, const struct bucket *bucket,
                          const struct tenant *tenant, enum job_priority priority);

/* Matrices of a job that wait. */
uint32_t job_waiting(const struct job *job);

/* The job waits in `bucket` from now on: at the end of its lane or, with front, at its head. */
void buckets_push(struct buckets *buckets, struct bucket *bucket, struct job *job);
void buckets_push_front(struct buckets *buckets, struct bucket *bucket, struct job *job);
/* Nothing of the job waits any more. */
void buckets_remove(struct buckets *buckets, struct job *job);
/* The next `count_max` matrices of the job, or fewer, leave for a batch: a range without a gap.
 * When they were the last, the job is removed. */
struct job_range buckets_deal(struct buckets *buckets, struct job *job, uint32_t count_max);
/* Its delay has ended; its last safe moment has come, which moves it to the front. */
void buckets_mark_ripe(struct job *job);
void buckets_mark_critical(struct job *job);
/* A batch of it begins, ends. */
void bucket_begin(struct buckets *buckets, struct bucket *bucket);
void bucket_end(struct buckets *buckets, struct bucket *bucket);

/* Estimated device seconds of `matrix_count` matrices in one batch. */
double bucket_seconds(const struct bucket *bucket, uint32_t matrix_count);

#endif
