/* arch_file: a checkpoint file as the model that arch.c decides about. */
#include "arch.h"

static const struct safetensors_entry *at(const void *data, size_t index)
{
    return safetensors_at(data, index);
}

static const struct safetensors_entry *find(const void *data, const char *name)
{
    return safetensors_find(data, name);
}

struct arch_model arch_model_of_file(const struct safetensors *set)
{
    return (
        struct arch_model){ .count = safetensors_count(set), .at = at, .find = find, .data = set };
}
