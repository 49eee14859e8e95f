/* turns: threads of the host go on in the order of virtual time.
 *
 * Which of a program's threads the machine runs first says nothing about a GPU, and a thread that
 * is ahead in real time would take work that another one, free earlier on the virtual clock, should
 * have taken. So with turns every wait for an event holds its thread until all of them wait; then
 * the one whose event came first goes on, alone. */
#include <pthread.h>

#include "emulator.h"

#define WAITERS_MAX 64u

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t threads; /* 0: no turns */
    uint64_t left;    /* waits that are still to begin */
    uint32_t waiting;
    double time_s[WAITERS_MAX]; /* of those that wait, by place */
    bool taken[WAITERS_MAX];
} turns = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

void emu_turns(uint32_t threads, uint64_t waits)
{
    pthread_mutex_lock(&turns.lock);
    turns.threads = threads < WAITERS_MAX ? threads : WAITERS_MAX;
    turns.left = waits;
    pthread_cond_broadcast(&turns.changed);
    pthread_mutex_unlock(&turns.lock);
}

static bool is_first(uint32_t place)
{
    for (uint32_t i = 0; i < WAITERS_MAX; i++) {
        if (turns.taken[i] && (turns.time_s[i] < turns.time_s[place] ||
                               (i < place && turns.time_s[i] <= turns.time_s[place])))
            return false;
    }
    return true;
}

/* Nobody is left who could take the turn of one that waits. */
static bool goes_on(uint32_t place)
{
    if (turns.threads == 0 || turns.left == 0)
        return true;
    return turns.waiting >= turns.threads && is_first(place);
}

void emu_turns_wait(double time_s)
{
    uint32_t place = 0;

    pthread_mutex_lock(&turns.lock);
    if (turns.threads > 0 && turns.left > 0 && turns.waiting < WAITERS_MAX) {
        while (turns.taken[place])
            place++;
        turns.taken[place] = true;
        turns.time_s[place] = time_s;
        turns.waiting++;
        turns.left--;
        pthread_cond_broadcast(&turns.changed);
        while (!goes_on(place))
            pthread_cond_wait(&turns.changed, &turns.lock);
        turns.taken[place] = false;
        turns.waiting--;
    }
    pthread_mutex_unlock(&turns.lock);
}
