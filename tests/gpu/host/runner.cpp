/* runner: kernel_runner.h for kernels compiled by g++. KERNEL_SOURCES names a header that includes
 * the .cuh files, KERNEL_TABLE a list of KERNEL(name, whether it has barriers); prepare_kernels.py
 * writes both. */
#include "../kernel_runner.h"

#include <cstdio>
#include <sys/mman.h>
#include <tuple>
#include <type_traits>

#include "cuda_on_host.h"
#include "fibers.h"

#define SHARED_BYTES_MAX ((size_t)256 << 10)
#define PAGE             4096u

host_index threadIdx;
host_index blockIdx;
host_index blockDim;
host_index gridDim;
uint64_t kernel_flops;

extern "C" char __start_fire_shared[] __attribute__((weak));
extern "C" char __stop_fire_shared[] __attribute__((weak));

static struct {
    char *room; /* ends at a page without access */
    char *start;
} dynamic_shared;

extern "C" void __syncthreads(void)
{
    fibers_barrier();
}

void *kernel_dynamic_shared(void)
{
    return dynamic_shared.start;
}

#include KERNEL_SOURCES

/* The arguments of the launch that runs, device pointers turned into shadow pointers. */
template <typename... A> struct bound {
    static inline std::tuple<A...> values;
    static inline void (*function)(A...);

    template <typename T> static T value(void *place, const kernel_memory *memory)
    {
        T result;

        memcpy(&result, place, sizeof(result));
        if constexpr (std::is_pointer_v<T>) {
            if (result)
                result = (T)((uintptr_t)result + (uintptr_t)memory->shadow_offset);
        }
        return result;
    }

    template <size_t... I>
    static void take(void **arguments, const kernel_memory *memory, std::index_sequence<I...>)
    {
        values = std::tuple<A...>(value<A>(arguments[I], memory)...);
        (void)arguments;
        (void)memory;
    }

    static void thread(void)
    {
        std::apply(function, values);
    }
};

typedef void (*body_function)(void);

template <typename... A>
static body_function bind(void (*function)(A...), void **arguments, const kernel_memory *memory)
{
    bound<A...>::function = function;
    bound<A...>::take(arguments, memory, std::index_sequence_for<A...>{});
    return bound<A...>::thread;
}

template <typename... A> static void describe(void (*)(A...), struct kernel_signature *signature)
{
    const uint32_t bytes[] = { (uint32_t)sizeof(A)..., 0 };

    static_assert(sizeof...(A) <= KERNEL_ARGUMENTS_MAX);
    signature->argument_count = sizeof...(A);
    for (uint32_t i = 0; i < sizeof...(A); i++)
        signature->argument_bytes[i] = bytes[i];
}

struct entry {
    const char *name;
    body_function (*bind)(void **arguments, const kernel_memory *memory);
    void (*describe)(struct kernel_signature *signature);
    bool barrier; /* some thread may wait for others */
};

static const entry table[] = {
#define KERNEL(name, barrier)                                                                        \
    { #name, [](void **arguments, const kernel_memory *memory) {                                   \
         return bind(name, arguments, memory);                                                     \
     },                                                                                            \
      [](struct kernel_signature *signature) { describe(name, signature); }, barrier },
#include KERNEL_TABLE
#undef KERNEL
};

static const entry *find(const char *name)
{
    for (const entry &row : table) {
        if (strcmp(row.name, name) == 0)
            return &row;
    }
    return nullptr;
}

extern "C" __attribute__((visibility("default"))) bool kernel_signature(
    const char *name, struct kernel_signature *signature)
{
    const entry *const row = find(name);

    if (row)
        row->describe(signature);
    return row != nullptr;
}

static bool make_dynamic(size_t bytes)
{
    if (!dynamic_shared.room) {
        void *const memory = mmap(nullptr, SHARED_BYTES_MAX + PAGE, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (memory == MAP_FAILED)
            return false;
        dynamic_shared.room = (char *)memory;
        mprotect(dynamic_shared.room + SHARED_BYTES_MAX, PAGE, PROT_NONE);
    }
    bytes = (bytes + 15) / 16 * 16;
    if (bytes > SHARED_BYTES_MAX)
        return false;
    dynamic_shared.start = dynamic_shared.room + SHARED_BYTES_MAX - bytes;
    memset(dynamic_shared.start, KERNEL_POISON, bytes);
    return true;
}

static void select_thread(uint32_t index)
{
    if (blockDim.y == 1 && blockDim.z == 1) {
        threadIdx = { index, 0, 0 };
        return;
    }
    threadIdx.x = index % blockDim.x;
    threadIdx.y = index / blockDim.x % blockDim.y;
    threadIdx.z = index / blockDim.x / blockDim.y;
}

/* Without barriers threads need no stacks of their own. */
static const char *run_in_turn(uint32_t threads, body_function body)
{
    for (uint32_t i = 0; i < threads; i++) {
        select_thread(i);
        body();
    }
    return nullptr;
}

/* Where the block is, for a message. */
static const char *explain(const char *words)
{
    static char text[200];

    snprintf(text, sizeof(text), "%s (block %u,%u,%u)", words, blockIdx.x, blockIdx.y, blockIdx.z);
    return text;
}

extern "C" __attribute__((visibility("default"))) const char *kernel_run(
    const struct kernel_launch *launch, const struct kernel_memory *memory,
    struct kernel_cost *cost)
{
    const entry *const row = find(launch->name);
    const uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    body_function body;

    if (!row)
        return "no such kernel";
    body = row->bind(launch->arguments, memory);
    gridDim = { launch->grid[0], launch->grid[1], launch->grid[2] };
    blockDim = { launch->block[0], launch->block[1], launch->block[2] };
    kernel_flops = 0;
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++) {
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++) {
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
                const char *words;

                if (!make_dynamic(launch->shared_bytes))
                    return "too much dynamic shared memory";
                if (__start_fire_shared)
                    memset(__start_fire_shared, KERNEL_POISON,
                           (uintptr_t)__stop_fire_shared - (uintptr_t)__start_fire_shared);
                words = row->barrier ? fibers_run(threads, body, select_thread)
                                     : run_in_turn(threads, body);
                if (words)
                    return explain(words);
            }
        }
    }
    cost->flops += kernel_flops;
    return nullptr;
}
