/* model: public figures of a few GPUs, and a roofline made of them. Not a claim about speed: it
 * shows which of two orders of the same work is better, and whether copies hide behind products. */
#include <string.h>

#include "emulator.h"

#define GIB            ((size_t)1 << 30)
#define KERNEL_SECONDS 2.0e-6 /* the least a kernel takes, its start included */
#define COPY_SECONDS   4.0e-6 /* the same for a copy over the link */
#define EFFICIENCY     0.8    /* of the peak, at best */

static const struct emu_model models[] = {
    { "H100", "NVIDIA H100 80GB HBM3 (emulated)", 9, 0, 132, 67e12, 494e12, 989e12, 67e12, 3.35e12,
      55e9, 80 * GIB, 227u << 10, 2048 },
    { "A100", "NVIDIA A100-SXM4-80GB (emulated)", 8, 0, 108, 19.5e12, 156e12, 312e12, 19.5e12,
      2.04e12, 25e9, 80 * GIB, 163u << 10, 2048 },
    { "RTX4090", "NVIDIA GeForce RTX 4090 (emulated)", 8, 9, 128, 82.6e12, 82.6e12, 165e12, 1.29e12,
      1.01e12, 25e9, 24 * GIB, 99u << 10, 1536 },
    { "T4", "Tesla T4 (emulated)", 7, 5, 40, 8.1e12, 8.1e12, 65e12, 0.254e12, 0.32e12, 12e9,
      16 * GIB, 64u << 10, 1024 },
};

const struct emu_model *emu_model_find(const char *name)
{
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    }
    return NULL;
}

double emu_model_seconds(const struct emu_model *model, const struct emu_cost *cost)
{
    const double rate = cost->flops_per_s > 0.0 ? cost->flops_per_s : model->fp32_flops;
    const double compute = cost->flops / (rate * EFFICIENCY);
    const double memory = cost->bytes / (model->memory_bytes_per_s * EFFICIENCY);

    switch (cost->engine) {
    case ENGINE_TO_DEVICE:
    case ENGINE_TO_HOST: return COPY_SECONDS + cost->bytes / model->link_bytes_per_s;
    case ENGINE_COMPUTE: return KERNEL_SECONDS + (compute > memory ? compute : memory);
    case ENGINE_NONE:
    case ENGINE_COUNT: break;
    }
    return 0.0;
}
