/* ptx_form: from the text of an opcode to the function that runs it. */
#include "ptx_internal.h"

const char *ptx_next_word(const char *text, char *word, size_t bytes)
{
    const size_t length = strcspn(text, ".");

    word[0] = '\0';
    if (length < bytes) {
        memcpy(word, text, length);
        word[length] = '\0';
    }
    return text[length] == '.' ? text + length + 1 : NULL;
}

enum ptx_type ptx_type_of(const char *name)
{
    static const struct {
        const char *name;
        enum ptx_type type;
    } types[] = {
        { "b8", PTX_U8 },     { "b16", PTX_U16 }, { "b32", PTX_U32 },   { "b64", PTX_U64 },
        { "u8", PTX_U8 },     { "u16", PTX_U16 }, { "u32", PTX_U32 },   { "u64", PTX_U64 },
        { "s8", PTX_S8 },     { "s16", PTX_S16 }, { "s32", PTX_S32 },   { "s64", PTX_S64 },
        { "f16", PTX_F16 },   { "f32", PTX_F32 }, { "bf16", PTX_BF16 }, { "f64", PTX_F64 },
        { "pred", PTX_PRED },
    };

    for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++)
        if (strcmp(name, types[k].name) == 0)
            return types[k].type;
    return PTX_TYPE_COUNT;
}

uint32_t ptx_type_bytes(enum ptx_type type)
{
    static const uint8_t bytes[PTX_TYPE_COUNT] = {
        [PTX_U8] = 1,  [PTX_U16] = 2, [PTX_U32] = 4,  [PTX_U64] = 8, [PTX_S8] = 1,
        [PTX_S16] = 2, [PTX_S32] = 4, [PTX_S64] = 8,  [PTX_F16] = 2, [PTX_BF16] = 2,
        [PTX_F32] = 4, [PTX_F64] = 8, [PTX_PRED] = 1,
    };

    return type < PTX_TYPE_COUNT ? bytes[type] : 0;
}

bool ptx_form_find(const char *opcode, struct ptx_form *form, struct ptx_instruction *instruction)
{
    const struct ptx_form *found = ptx_alu_find(opcode);

    if (!found)
        found = ptx_warp_find(opcode);
    if (found)
        *form = *found;
    else if (!ptx_memory_find(opcode, form, instruction) &&
             !ptx_convert_find(opcode, form, instruction) &&
             !ptx_compare_find(opcode, form, instruction))
        return false;
    instruction->run = form->run;
    instruction->meet = form->meet;
    instruction->copies = form->copies;
    return true;
}
