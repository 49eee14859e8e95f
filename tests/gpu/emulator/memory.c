/* memory: device memory that only the emulator can read.
 *
 * Two address ranges of equal size are reserved. Pointers that cudaMalloc gives lie in the first,
 * which is never accessible; the contents lie at the same distance in the second, of which exactly
 * the pages of live allocations are mapped. So the host faults when it reads device memory, and a
 * kernel run on the host faults when it leaves an allocation. Allocations end at the end of a page
 * as closely as the alignment allows, and addresses are never given twice.
 *
 * Fresh pages come from a file of poison, mapped privately: a huge allocation costs nothing until
 * it is written. What lies between an allocation and the ends of its pages must still be poison
 * when it is freed. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulator.h"

#define ALIGNMENT    256u
#define PAGE         4096u
#define POISON_BYTES ((size_t)64 << 20)
#define PINNED_MAX   4096u
#define RANGE_MIN    ((size_t)1 << 30)

struct allocation {
    uint64_t address;
    size_t bytes;
    uint64_t page_first;
    size_t page_bytes;
    uint32_t device;
    bool live;
};

static struct {
    int poison;
    uint64_t base; /* of the range without access */
    uint64_t next;
    size_t range_bytes;
    ptrdiff_t shadow;
    struct allocation *list; /* by address, dead ones too */
    size_t count;
    size_t capacity;
    struct sigaction old_handler;
    char words[160];
} memory;

static struct {
    char *start;
    size_t bytes;
    bool registered;
} pinned[PINNED_MAX];
static size_t pinned_count;

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Maps poison over `bytes` reserved bytes at `start`. */
static bool map_poison(char *start, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += POISON_BYTES) {
        const size_t part = bytes - done < POISON_BYTES ? bytes - done : POISON_BYTES;
        const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;

        if (mmap(start + done, part, PROT_READ | PROT_WRITE, flags, memory.poison, 0) == MAP_FAILED)
            return false;
    }
    return true;
}

static char *reserve(size_t bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *const start = mmap(NULL, bytes, PROT_NONE, flags, -1, 0);

    return start == MAP_FAILED ? NULL : start;
}

/* The allocation with the greatest address not above `address`. */
static struct allocation *find(uint64_t address)
{
    size_t low = 0;
    size_t high = memory.count;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (memory.list[middle].page_first <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &memory.list[low - 1] : NULL;
}

const char *emu_memory_words(const void *pointer)
{
    const uint64_t address = (uint64_t)(uintptr_t)pointer;
    const struct allocation *const near = find(address);

    if (!emu_memory_is_device(pointer))
        snprintf(memory.words, sizeof(memory.words), "%p is no device address", pointer);
    else if (!near)
        snprintf(memory.words, sizeof(memory.words), "%p was never allocated", pointer);
    else
        snprintf(memory.words, sizeof(memory.words),
                 "%p is %lld bytes into %s allocation %zu of %zu bytes", pointer,
                 (long long)(address - near->address), near->live ? "live" : "freed",
                 (size_t)(near - memory.list), near->bytes);
    return memory.words;
}

/* Says whose fault it was, then lets it happen again without us. */
static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    const uint64_t address = (uint64_t)(uintptr_t)info->si_addr;
    const uint64_t shadow_base = memory.base + (uint64_t)memory.shadow;
    char words[400];
    int length = 0;

    (void)context;
    if (address - memory.base < memory.range_bytes)
        length =
            snprintf(words, sizeof(words), "CUDA emulator: host code touched device memory: %s\n",
                     emu_memory_words(info->si_addr));
    else if (address - shadow_base < memory.range_bytes)
        length = snprintf(words, sizeof(words), "CUDA emulator: out of bounds in %s: %s\n",
                          emu_world.running,
                          emu_memory_words((void *)(uintptr_t)(address - (uint64_t)memory.shadow)));
    if (length > 0 && write(STDERR_FILENO, words, (size_t)length) < 0)
        _exit(SIGSEGV); /* nobody can be told */
    sigaction(signal_number, &memory.old_handler, NULL);
}

void emu_memory_open(size_t range_bytes)
{
    struct sigaction action;
    char *poison;
    char *base;
    char *shadow;

    memory.poison = memfd_create("poison", MFD_CLOEXEC);
    do { /* sanitizers leave less room */
        base = reserve(range_bytes);
        shadow = reserve(range_bytes);
        range_bytes /= 2;
    } while ((!base || !shadow) && range_bytes > RANGE_MIN);
    range_bytes *= 2;
    if (memory.poison < 0 || ftruncate(memory.poison, (off_t)POISON_BYTES) || !base || !shadow) {
        perror("CUDA emulator: cannot reserve its address ranges");
        abort();
    }
    poison = mmap(NULL, POISON_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory.poison, 0);
    if (poison == MAP_FAILED)
        abort();
    memset(poison, KERNEL_POISON, POISON_BYTES);
    munmap(poison, POISON_BYTES);
    memory.base = (uint64_t)(uintptr_t)base;
    memory.next = memory.base + PAGE;
    memory.range_bytes = range_bytes;
    memory.shadow = shadow - base;

    memset(&action, 0, sizeof(action));
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &memory.old_handler);
}

uint64_t emu_memory_allocate(uint32_t device, size_t bytes)
{
    const size_t rounded = round_up(bytes ? bytes : 1, ALIGNMENT);
    const size_t pages = round_up(rounded, PAGE);
    struct emu_device *const owner = &emu_world.devices[device];
    struct allocation *fresh;

    if (rounded < bytes || rounded > owner->memory_limit - owner->memory_used ||
        owner->memory_used > owner->memory_limit ||
        pages + PAGE > memory.base + memory.range_bytes - memory.next)
        return 0;
    if (memory.count == memory.capacity) {
        const size_t capacity = memory.capacity ? 2 * memory.capacity : 64;
        struct allocation *const list = realloc(memory.list, capacity * sizeof(*list));

        if (!list)
            return 0;
        memory.list = list;
        memory.capacity = capacity;
    }
    if (!map_poison((char *)(uintptr_t)(memory.next + (uint64_t)memory.shadow), pages))
        return 0;
    fresh = &memory.list[memory.count++];
    *fresh = (struct allocation){ .address = memory.next + pages - rounded,
                                  .bytes = bytes,
                                  .page_first = memory.next,
                                  .page_bytes = pages,
                                  .device = device,
                                  .live = true };
    memory.next += pages + PAGE;
    owner->memory_used += rounded;
    emu_world.counters.live_device_allocations++;
    emu_world.counters.live_device_bytes += bytes;
    return fresh->address;
}

static void check_poison(const struct allocation *gone)
{
    const unsigned char *const pages =
        (const unsigned char *)(uintptr_t)(gone->page_first + (uint64_t)memory.shadow);
    const size_t start = gone->address - gone->page_first;

    for (size_t i = 0; i < gone->page_bytes; i++) {
        if (i == start)
            i += gone->bytes;
        if (i < gone->page_bytes && pages[i] != KERNEL_POISON) {
            emu_complain("something wrote outside an allocation: %s",
                         emu_memory_words((void *)(uintptr_t)(gone->page_first + i)));
            return;
        }
    }
}

static void release(struct allocation *gone)
{
    char *const pages = (char *)(uintptr_t)(gone->page_first + (uint64_t)memory.shadow);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;

    check_poison(gone);
    if (mmap(pages, gone->page_bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED)
        abort();
    gone->live = false;
    emu_world.devices[gone->device].memory_used -=
        round_up(gone->bytes ? gone->bytes : 1, ALIGNMENT);
    emu_world.counters.live_device_allocations--;
    emu_world.counters.live_device_bytes -= gone->bytes;
}

bool emu_memory_release(uint64_t address)
{
    struct allocation *const gone = find(address);

    if (!gone || !gone->live || gone->address != address)
        return false;
    release(gone);
    return true;
}

void emu_memory_release_device(uint32_t device)
{
    for (size_t i = 0; i < memory.count; i++) {
        if (memory.list[i].live && memory.list[i].device == device)
            release(&memory.list[i]);
    }
}

bool emu_memory_is_device(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer - memory.base < memory.range_bytes;
}

const void *emu_memory_from_kernel(const void *pointer)
{
    const uint64_t address = (uint64_t)(uintptr_t)pointer - (uint64_t)memory.shadow;

    return address - memory.base < memory.range_bytes ? (const void *)(uintptr_t)address : pointer;
}

int emu_memory_device_of(const void *pointer)
{
    const struct allocation *const holder = find((uint64_t)(uintptr_t)pointer);

    return emu_memory_is_device(pointer) && holder && holder->live ? (int)holder->device : -1;
}

bool emu_memory_find(const void *device_pointer, uint64_t *base, size_t *bytes)
{
    const uint64_t address = (uint64_t)(uintptr_t)device_pointer;
    const struct allocation *const holder = find(address);

    if (!emu_memory_is_device(device_pointer) || !holder || !holder->live ||
        address < holder->address || address >= holder->address + holder->bytes)
        return false;
    *base = holder->address;
    *bytes = holder->bytes;
    return true;
}

void *emu_memory_shadow(const void *device_pointer, size_t bytes)
{
    const uint64_t address = (uint64_t)(uintptr_t)device_pointer;
    uint64_t base;
    size_t size;

    if (!emu_memory_find(device_pointer, &base, &size) || bytes > size - (address - base))
        return NULL;
    return (void *)(uintptr_t)(address + (uint64_t)memory.shadow);
}

static void *translate(void *context, uint64_t address, size_t bytes, bool write)
{
    (void)context;
    (void)write;
    return emu_memory_shadow((const void *)(uintptr_t)address, bytes);
}

static bool allocation(void *context, uint64_t address, uint64_t *base, size_t *bytes)
{
    (void)context;
    return emu_memory_find((const void *)(uintptr_t)address, base, bytes);
}

struct kernel_memory emu_memory_for_kernels(void)
{
    return (struct kernel_memory){ .translate = translate,
                                   .allocation = allocation,
                                   .shadow_offset = memory.shadow };
}

bool emu_memory_has(const void *bytes, size_t count)
{
    for (size_t i = 0; i < memory.count; i++) {
        const struct allocation *const one = &memory.list[i];

        if (one->live && memmem((const char *)(uintptr_t)(one->address + (uint64_t)memory.shadow),
                                one->bytes, bytes, count))
            return true;
    }
    for (size_t i = 0; i < pinned_count; i++) {
        if (memmem(pinned[i].start, pinned[i].bytes, bytes, count))
            return true;
    }
    return false;
}

/* --- page-locked host memory */

static bool pinned_add(char *start, size_t bytes, bool registered)
{
    if (pinned_count == PINNED_MAX)
        return false;
    pinned[pinned_count].start = start;
    pinned[pinned_count].bytes = bytes;
    pinned[pinned_count++].registered = registered;
    emu_world.counters.live_host_allocations++;
    return true;
}

/* Ends at a page without access, as closely as 64-byte alignment allows. */
void *emu_pinned_allocate(size_t bytes)
{
    const size_t rounded = round_up(bytes ? bytes : 1, 64);
    const size_t pages = round_up(rounded, PAGE);
    char *const start = rounded < bytes ? NULL : reserve(pages + PAGE);

    if (!start || !map_poison(start, pages) || !pinned_add(start + pages - rounded, rounded, false))
        return NULL;
    return start + pages - rounded;
}

bool emu_pinned_register(void *start, size_t bytes)
{
    return !emu_pinned_holds(start, 1) && pinned_add(start, bytes, true);
}

bool emu_pinned_release(void *start, bool registered)
{
    for (size_t i = 0; i < pinned_count; i++) {
        const size_t pages = round_up(pinned[i].bytes, PAGE);

        if (pinned[i].start != start || pinned[i].registered != registered)
            continue;
        if (!registered)
            munmap(pinned[i].start + pinned[i].bytes - pages, pages + PAGE);
        pinned[i] = pinned[--pinned_count];
        emu_world.counters.live_host_allocations--;
        return true;
    }
    return false;
}

bool emu_pinned_holds(const void *start, size_t bytes)
{
    const char *const first = start;

    for (size_t i = 0; i < pinned_count; i++) {
        if (first >= pinned[i].start && first < pinned[i].start + pinned[i].bytes &&
            bytes <= (size_t)(pinned[i].start + pinned[i].bytes - first))
            return true;
    }
    return false;
}
