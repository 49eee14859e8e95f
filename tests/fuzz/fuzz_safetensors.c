/* The file reader on bytes from strangers.
 *
 * Each input is read twice: as a file, and as "header 0xff data" with the right size put before it.
 * The byte 0xff cannot be in UTF-8, so it marks the place, and mutations of the second kind reach
 * the checks behind the size prefix.
 *
 * What opens must keep the reader's promises: entries tile the data in order, each of their ends
 * can be read (the address sanitizer watches), every name finds its entry. */
#include <stdlib.h>
#include <string.h>

#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static volatile uint8_t seen; /* keeps reads alive */

static void entry_check(const struct safetensors_entry *entry, const uint8_t *bytes, size_t size)
{
    const uint8_t *data = entry->data;
    uint64_t elements = 1;

    FIRE_ASSERT(entry->bytes <= size);
    FIRE_ASSERT(entry->file_offset <= size - entry->bytes);
    FIRE_ASSERT(data == bytes + entry->file_offset);
    if (entry->bytes > 0) {
        seen = data[0];
        seen = data[entry->bytes - 1];
    }
    FIRE_ASSERT(strlen(entry->dtype_name) < sizeof(entry->dtype_name));
    FIRE_ASSERT(entry->shape.axes <= FIRE_AXES_MAX);
    if (entry->too_many_axes || !entry->floating)
        return;
    for (uint32_t i = 0; i < entry->shape.axes; i++)
        elements *= entry->shape.size[i];
    switch (entry->dtype) {
    case FIRE_F64: FIRE_ASSERT(entry->bytes == elements * 8); break;
    case FIRE_F32: FIRE_ASSERT(entry->bytes == elements * 4); break;
    case FIRE_BF16:
    case FIRE_F16: FIRE_ASSERT(entry->bytes == elements * 2); break;
    }
}

static void set_check(const struct safetensors *set, const uint8_t *bytes, size_t size)
{
    const size_t count = safetensors_count(set);
    uint64_t reached = 0;

    FIRE_ASSERT(!safetensors_sharded(set));
    for (size_t i = 0; i < count; i++) {
        const struct safetensors_entry *entry = safetensors_at(set, i);

        entry_check(entry, bytes, size);
        FIRE_ASSERT(i == 0 || entry->file_offset == reached);
        FIRE_ASSERT(entry->file_index == 0);
        FIRE_ASSERT(safetensors_find(set, entry->name) == entry);
        safetensors_will_need(set, entry);
        safetensors_done_with(set, entry); /* the caller's memory: must change nothing */
        reached = entry->file_offset + entry->bytes;
    }
    FIRE_ASSERT(count == 0 || reached == size);
    FIRE_ASSERT(!safetensors_find(set, "__metadata__"));
}

static void file_check(const uint8_t *bytes, size_t size)
{
    struct fire_error error = { 0 };
    struct safetensors *set;
    const enum fire_status status = safetensors_open_memory(bytes, size, &set, &error);

    if (status == FIRE_OK) {
        set_check(set, bytes, size);
        safetensors_close(set);
        return;
    }
    FIRE_ASSERT(!set);
    FIRE_ASSERT(status == FIRE_BAD_REQUEST || status == FIRE_NO_MEMORY);
    FIRE_ASSERT(error.status == status);
    FIRE_ASSERT(error.message[0]);
    FIRE_ASSERT(!strpbrk(error.message, "\n\r\t\033"));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const uint8_t *mark = memchr(bytes, 0xff, size);
    const size_t header_bytes = mark ? (size_t)(mark - bytes) : size;
    const size_t data_bytes = mark ? size - header_bytes - 1 : 0;
    uint8_t *file = malloc(8 + header_bytes + data_bytes);

    file_check(bytes, size);
    if (!file)
        return 0;
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
    memcpy(file + 8, bytes, header_bytes);
    memcpy(file + 8 + header_bytes, bytes + size - data_bytes, data_bytes);
    file_check(file, 8 + header_bytes + data_bytes);
    free(file);
    return 0;
}
