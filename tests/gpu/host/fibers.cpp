/* fibers: threads of a block in turn. Every second round runs backwards, so that code which needs
 * a barrier that is not there meets both orders. */
#include "fibers.h"

#include <cstdlib>
#include <sys/mman.h>

#define FIBERS_MAX  1024u
#define STACK_BYTES (32u << 10)
#define MARGIN      ((size_t)4 << 20)
#define COLOURS     61u /* tops of stacks must not all share one set of the cache */

/* switch_stack(save, load): keeps the callee-saved registers on the stack left behind. */
extern "C" void switch_stack(void **save, void *load);
asm(".text\n"
    ".type switch_stack,@function\n"
    "switch_stack:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    popq %rcx\n"
    "    jmp *%rcx\n" /* a return would be predicted wrongly every time */
    ".size switch_stack,.-switch_stack\n");

enum fiber_state { FIBER_READY, FIBER_WAITING, FIBER_DONE };

static struct {
    char *stacks;
    void *pointer[FIBERS_MAX];
    fiber_state state[FIBERS_MAX];
    uint32_t current;
    void *scheduler;
    void (*body)(void);
} fibers;

static void leave(fiber_state state)
{
    fibers.state[fibers.current] = state;
    switch_stack(&fibers.pointer[fibers.current], fibers.scheduler);
}

static void enter(void)
{
    fibers.body();
    leave(FIBER_DONE);
    abort();
}

void fibers_barrier(void)
{
    leave(FIBER_WAITING);
}

/* Far from any other stack: valgrind takes a stack pointer that moves by less than 2 MB for a
 * stack that grows or shrinks, and what lies between for part of it. */
static bool make_stacks(void)
{
    const size_t bytes = (size_t)FIBERS_MAX * STACK_BYTES;

    if (!fibers.stacks) {
        void *const memory = mmap(nullptr, bytes + 2 * MARGIN, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (memory != MAP_FAILED &&
            mprotect((char *)memory + MARGIN, bytes, PROT_READ | PROT_WRITE) == 0)
            fibers.stacks = (char *)memory + MARGIN;
    }
    return fibers.stacks != nullptr;
}

/* A stack that switch_stack() returns from into enter(), aligned as after a call. */
static void prepare(uint32_t index)
{
    void **const top = (void **)(fibers.stacks + (size_t)(index + 1) * STACK_BYTES -
                                 (size_t)(index % COLOURS) * 64u);

    top[-1] = nullptr;
    top[-2] = (void *)enter;
    for (int i = 3; i <= 8; i++)
        top[-i] = nullptr;
    fibers.pointer[index] = &top[-8];
    fibers.state[index] = FIBER_READY;
}

const char *fibers_run(uint32_t count, void (*body)(void), void (*select)(uint32_t index))
{
    uint32_t done = 0;

    if (count > FIBERS_MAX || !make_stacks())
        return "too many threads in a block";
    fibers.body = body;
    for (uint32_t i = 0; i < count; i++)
        prepare(i);
    for (uint32_t round = 0; done < count; round++) {
        uint32_t waiting = 0;

        for (uint32_t i = 0; i < count; i++) {
            fibers.current = round % 2 ? count - 1 - i : i;
            if (fibers.state[fibers.current] == FIBER_DONE)
                continue;
            select(fibers.current);
            switch_stack(&fibers.scheduler, fibers.pointer[fibers.current]);
            done += fibers.state[fibers.current] == FIBER_DONE;
            waiting += fibers.state[fibers.current] == FIBER_WAITING;
        }
        if (waiting > 0 && done > 0)
            return "divergent barrier: some threads wait at one, others have ended";
    }
    return nullptr;
}
