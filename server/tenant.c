/* tenant: a table of pointers, found by a hash of the name. Limits given by name are kept in a
 * tenant of that name, which is made then if it is new. */
#include "tenant.h"

#include <stdlib.h>
#include <string.h>

#define INDEX_SLOTS (4u * TENANTS_MAX) /* a power of two, never more than a quarter full */

struct tenants {
    struct tenant_limits defaults;
    uint32_t count;
    struct tenant *entries[TENANTS_MAX];
    uint16_t index[INDEX_SLOTS]; /* 1 + position in `entries`; 0: empty */
};
_Static_assert((INDEX_SLOTS & (INDEX_SLOTS - 1)) == 0, "the hash is masked");
_Static_assert(TENANTS_MAX < UINT16_MAX, "positions fit the index");

enum fire_status tenants_open(const struct tenant_limits *defaults, struct tenants **out)
{
    struct tenants *tenants = calloc(1, sizeof(*tenants));

    *out = tenants;
    if (!tenants)
        return FIRE_NO_MEMORY;
    tenants->defaults = *defaults;
    return FIRE_OK;
}

void tenants_close(struct tenants *tenants)
{
    if (!tenants)
        return;
    for (uint32_t i = 0; i < tenants->count; i++)
        free(tenants->entries[i]);
    free(tenants);
}

static bool is_name_byte(char byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || byte == '.' || byte == '_' || byte == '-';
}

static enum fire_status check_name(const char *name, struct fire_error *error)
{
    size_t bytes = 0;

    while (bytes < TENANT_NAME_BYTES && is_name_byte(name[bytes]))
        bytes++;
    if (bytes > 0 && bytes < TENANT_NAME_BYTES && name[bytes] == '\0')
        return FIRE_OK;
    return fire_fail(error, FIRE_BAD_REQUEST, "tenant",
                     "a tenant's name is 1 to %u letters, digits, '.', '_' or '-': rename it",
                     TENANT_NAME_BYTES - 1);
}

/* The slot of the index where `name` is, or where it would go. */
static uint32_t slot_of(const struct tenants *tenants, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    uint32_t slot;

    for (const char *byte = name; *byte; byte++)
        hash = (hash ^ (unsigned char)*byte) * 0x100000001b3u;
    slot = (uint32_t)(hash ^ (hash >> 32)) & (INDEX_SLOTS - 1);
    while (tenants->index[slot] &&
           strcmp(tenants->entries[tenants->index[slot] - 1]->name, name) != 0)
        slot = (slot + 1) & (INDEX_SLOTS - 1);
    return slot;
}

static enum fire_status find_entry(struct tenants *tenants, const char *name, struct tenant **out,
                                   struct fire_error *error)
{
    enum fire_status status = check_name(name, error);
    struct tenant *entry;
    uint32_t slot;

    *out = NULL;
    if (status != FIRE_OK)
        return status;
    slot = slot_of(tenants, name);
    if (tenants->index[slot]) {
        *out = tenants->entries[tenants->index[slot] - 1];
        return FIRE_OK;
    }
    if (tenants->count == TENANTS_MAX)
        return fire_fail(error, FIRE_BUSY, "tenant",
                         "all %u tenants that the daemon can tell apart are taken: use a name that "
                         "is known already, or restart the daemon",
                         TENANTS_MAX);
    entry = calloc(1, sizeof(*entry));
    if (!entry)
        return fire_fail_memory(error, sizeof(*entry));
    memcpy(entry->name, name, strlen(name));
    entry->limits = tenants->defaults;
    tenants->entries[tenants->count++] = entry;
    tenants->index[slot] = (uint16_t)tenants->count;
    *out = entry;
    return FIRE_OK;
}

enum fire_status tenants_find(struct tenants *tenants, const char *name, struct tenant **tenant,
                              struct fire_error *error)
{
    struct tenant *entry;
    const enum fire_status status = find_entry(tenants, name, &entry, error);

    *tenant = entry;
    return status;
}

void tenants_set_defaults(struct tenants *tenants, const struct tenant_limits *defaults)
{
    tenants->defaults = *defaults;
    for (uint32_t i = 0; i < tenants->count; i++)
        tenants->entries[i]->limits = *defaults;
}

enum fire_status tenants_set_limits(struct tenants *tenants, const char *name,
                                    const struct tenant_limits *limits, struct fire_error *error)
{
    struct tenant *entry;
    const enum fire_status status = find_entry(tenants, name, &entry, error);

    if (status != FIRE_OK)
        return status;
    entry->limits = *limits;
    return FIRE_OK;
}

uint32_t tenants_count(const struct tenants *tenants)
{
    return tenants->count;
}

struct tenant *tenants_at(struct tenants *tenants, uint32_t index)
{
    return index < tenants->count ? tenants->entries[index] : NULL;
}
