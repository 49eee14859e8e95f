/* The reader believes nothing and the writer leaves either everything or nothing.
 *
 * Files are built here byte by byte, never by the writer under test, except where the writer is the
 * subject. Each test works in a fresh directory and looks at every name in it afterwards. */
#define _GNU_SOURCE
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "safetensors.h"

#define FILE_BYTES_MAX 4096
#define PATH_BYTES     256

static char folder[PATH_BYTES]; /* this test's own */

static void folder_make(void)
{
    const char *base = getenv("TMPDIR");

    snprintf(folder, sizeof(folder), "%s/fire-test-XXXXXX", base && *base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

/* `name` in the test's folder; the last sixteen results are valid. */
static const char *in_folder(const char *name)
{
    static char paths[16][PATH_BYTES * 2];
    static unsigned next;
    char *path = paths[next++ % 16];

    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

/* How many names are in a directory, hidden ones too. */
static int names_count(const char *path)
{
    DIR *directory = opendir(path);
    int count = 0;

    ck_assert_ptr_nonnull(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count - 2;
}

static void folder_remove(void)
{
    char command[PATH_BYTES + 16];

    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

/* Puts `file` in the place of `standard`, which is given back for descriptor_restore(). The tests
 * stay runnable in one process. */
static int descriptor_divert(int standard, int file)
{
    int kept;

    fflush(stdout);
    kept = dup(standard);
    ck_assert_int_ge(kept, 0);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(dup2(file, standard), standard);
    close(file);
    return kept;
}

static void descriptor_restore(int standard, int kept)
{
    ck_assert_int_eq(dup2(kept, standard), standard);
    close(kept);
}

/* From now on no file may grow over `bytes`; RLIM_INFINITY takes it back. A full disk, as far as
 * the writer can tell, and it needs no disk of our own. */
static void file_limit(rlim_t bytes)
{
    struct rlimit limit;

    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Prefix, header text and `data_bytes` bytes 0, 1, 2, … */
static size_t file_build(uint8_t *file, const char *header, size_t data_bytes)
{
    const size_t header_bytes = strlen(header);

    ck_assert_uint_le(8 + header_bytes + data_bytes, FILE_BYTES_MAX);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)(header_bytes >> (8 * i));
    for (size_t i = 0; i < header_bytes; i++)
        file[8 + i] = (uint8_t)header[i];
    for (size_t i = 0; i < data_bytes; i++)
        file[8 + header_bytes + i] = (uint8_t)i;
    return 8 + header_bytes + data_bytes;
}

static void file_put(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");

    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

static size_t file_get(const char *path, uint8_t *bytes)
{
    FILE *file = fopen(path, "rb");
    size_t size;

    ck_assert_msg(file, "%s: %s", path, strerror(errno));
    size = fread(bytes, 1, FILE_BYTES_MAX, file);
    fclose(file);
    return size;
}

static void file_put_built(const char *path, const char *header, size_t data_bytes)
{
    uint8_t file[FILE_BYTES_MAX];

    file_put(path, file, file_build(file, header, data_bytes));
}

/* Both files have the same bytes. */
static void files_equal(const char *left, const char *right)
{
    static uint8_t bytes[2][FILE_BYTES_MAX];
    const size_t size = file_get(left, bytes[0]);

    ck_assert_uint_eq(file_get(right, bytes[1]), size);
    ck_assert_mem_eq(bytes[0], bytes[1], size);
}

/* A failure that a person could act on: a message in one line, without holes. */
static void ck_error(const char *name, enum fire_status got, enum fire_status want,
                     const struct fire_error *error, const char *words)
{
    ck_assert_msg(got == want, "%s: status %s, wanted %s (%s)", name, fire_status_name(got),
                  fire_status_name(want), error->message);
    ck_assert_msg(error->status == want, "%s: the error holds another status", name);
    ck_assert_msg(strstr(error->message, words), "%s: '%s' not in '%s'", name, words,
                  error->message);
    ck_assert_msg(strpbrk(error->message, "\n\r\t\033") == NULL, "%s: not one line", name);
    ck_assert_msg(strchr(error->message, ';'), "%s: '%s' does not say what to do", name,
                  error->message);
}

#define A_F32 "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B_I64 "\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[24,32]}"
#define C_U8  "\"c\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[32,32]}"
#define META  "\"__metadata__\":{\"format\":\"pt\"}"
#define GOOD  "{" META "," B_I64 "," A_F32 "," C_U8 "}   "

START_TEST(entries_come_in_file_order_with_everything_about_them)
{
    uint8_t file[FILE_BYTES_MAX];
    const size_t size = file_build(file, GOOD, 32);
    const struct safetensors_entry *entry;
    struct safetensors *set;
    struct fire_error error;

    ck_assert_int_eq(safetensors_open_memory(file, size, &set, &error), FIRE_OK);
    ck_assert_uint_eq(safetensors_count(set), 3);
    ck_assert(!safetensors_sharded(set));

    entry = safetensors_at(set, 0);
    ck_assert_str_eq(entry->name, "a");
    ck_assert_str_eq(entry->dtype_name, "F32");
    ck_assert(entry->floating && entry->dtype == FIRE_F32 && !entry->too_many_axes);
    ck_assert_uint_eq(entry->shape.axes, 2);
    ck_assert_uint_eq(entry->shape.size[0], 2);
    ck_assert_uint_eq(entry->shape.size[1], 3);
    ck_assert_uint_eq(entry->bytes, 24);
    ck_assert_ptr_eq(entry->data, file + size - 32);
    ck_assert_uint_eq(entry->file_offset, size - 32);

    entry = safetensors_at(set, 1);
    ck_assert_str_eq(entry->name, "b");
    ck_assert(!entry->floating);
    ck_assert_uint_eq(entry->shape.axes, 0);
    ck_assert_uint_eq(entry->bytes, 8);
    ck_assert_int_eq(*(const uint8_t *)entry->data, 24);

    entry = safetensors_at(set, 2);
    ck_assert_str_eq(entry->name, "c");
    ck_assert_uint_eq(entry->bytes, 0);

    ck_assert_ptr_eq(safetensors_find(set, "b"), safetensors_at(set, 1));
    ck_assert_ptr_null(safetensors_find(set, "__metadata__"));
    ck_assert_ptr_null(safetensors_find(set, "d"));
    safetensors_close(set);
    safetensors_close(NULL);
}
END_TEST

/* Every dtype of the format: eight elements take as many bytes as one element has bits. */
static const struct {
    const char *name;
    unsigned bits;
    bool floating;
    enum fire_dtype dtype;
} dtype_cases[] = {
    /* clang-format off */
    { "BOOL", 8, false, 0 },        { "U8", 8, false, 0 },
    { "I8", 8, false, 0 },          { "F8_E4M3", 8, false, 0 },
    { "F8_E5M2", 8, false, 0 },     { "F8_E8M0", 8, false, 0 },
    { "F8_E4M3FNUZ", 8, false, 0 }, { "F8_E5M2FNUZ", 8, false, 0 },
    { "F6_E2M3", 6, false, 0 },     { "F6_E3M2", 6, false, 0 },
    { "F4", 4, false, 0 },          { "I16", 16, false, 0 },
    { "U16", 16, false, 0 },        { "F16", 16, true, FIRE_F16 },
    { "BF16", 16, true, FIRE_BF16 }, { "I32", 32, false, 0 },
    { "U32", 32, false, 0 },        { "F32", 32, true, FIRE_F32 },
    { "I64", 64, false, 0 },        { "U64", 64, false, 0 },
    { "F64", 64, true, FIRE_F64 },  { "C64", 64, false, 0 },
    /* clang-format on */
};

START_TEST(every_dtype_has_its_size_and_only_four_are_ours)
{
    uint8_t file[FILE_BYTES_MAX];
    char header[256];
    struct safetensors *set;
    struct fire_error error;
    size_t size;

    snprintf(header, sizeof(header),
             "{\"t\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%u]}}",
             dtype_cases[_i].name, dtype_cases[_i].bits);
    size = file_build(file, header, dtype_cases[_i].bits);
    ck_assert_msg(safetensors_open_memory(file, size, &set, &error) == FIRE_OK, "%s: %s",
                  dtype_cases[_i].name, error.message);
    ck_assert_str_eq(safetensors_at(set, 0)->dtype_name, dtype_cases[_i].name);
    ck_assert_uint_eq(safetensors_at(set, 0)->bytes, dtype_cases[_i].bits);
    ck_assert(safetensors_at(set, 0)->floating == dtype_cases[_i].floating);
    if (dtype_cases[_i].floating)
        ck_assert_int_eq(safetensors_at(set, 0)->dtype, dtype_cases[_i].dtype);
    safetensors_close(set);
}
END_TEST

/* Headers that are unusual but right. */
static const struct {
    const char *name;
    const char *header;
    size_t data_bytes;
    size_t count;
} good_cases[] = {
    { "no tensor at all", "{}", 0, 0 },
    { "metadata alone", "{\"__metadata__\":{}}", 0, 0 },
    { "a zero inside a metadata value", "{\"__metadata__\":{\"k\":\"a\\u0000b\"}}", 0, 0 },
    { "spaces before the data", "{}      ", 0, 0 },
    { "an empty name", "{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 1 },
    { "a name in another alphabet",
      "{\"\xd0\xb2\xd0\xb5\xd1\x81/\xf0\x9f\x94\xa5\":"
      "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
      1, 1 },
    { "eight axes", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,2],\"data_offsets\":[0,2]}}",
      2, 1 },
    { "nine axes",
      "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,2]}}", 2, 1 },
    { "three empty tensors at one place",
      "{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
      "\"y\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[0,0]},"
      "\"z\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
      "\"w\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}}",
      4, 4 },
    { "an empty tensor with a huge axis",
      "{\"x\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]}}", 0,
      1 },
};

START_TEST(unusual_but_right_files_open)
{
    uint8_t file[FILE_BYTES_MAX];
    const size_t size = file_build(file, good_cases[_i].header, good_cases[_i].data_bytes);
    struct safetensors *set;
    struct fire_error error;

    ck_assert_msg(safetensors_open_memory(file, size, &set, &error) == FIRE_OK, "%s: %s",
                  good_cases[_i].name, error.message);
    ck_assert_msg(safetensors_count(set) == good_cases[_i].count, "%s", good_cases[_i].name);
    for (size_t i = 0; i < safetensors_count(set); i++) {
        const struct safetensors_entry *entry = safetensors_at(set, i);

        ck_assert_ptr_eq(safetensors_find(set, entry->name), entry);
        ck_assert(entry->too_many_axes == (strcmp(good_cases[_i].name, "nine axes") == 0));
    }
    safetensors_close(set);
}
END_TEST

#define ONE(description) "{\"a\":" description "}"

/* Headers that lie, and the words that must be in the message. */
static const struct {
    const char *name;
    const char *header;
    size_t data_bytes;
    const char *words;
} bad_cases[] = {
    { "an array", "[1]", 0, "does not begin with '{'" },
    { "a space first", " {}", 0, "does not begin with '{'" },
    { "text after the object", "{} x", 0, "not valid JSON" },
    { "an object left open", "{\"a\":", 0, "not valid JSON" },
    { "bytes that are no UTF-8", "{\"\xff\":{}}", 0, "not valid JSON" },
    { "a zero in a name", "{\"a\\u0000b\":{}}", 0, "not valid JSON" },
    { "a name twice", "{" A_F32 "," A_F32 "}", 24, "duplicate" },
    { "metadata twice", "{" META "," META "}", 0, "duplicate" },
    { "a key twice in a tensor",
      ONE("{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}"), 1,
      "duplicate" },
    { "metadata that is a string", "{\"__metadata__\":\"x\"}", 0, "is no JSON object" },
    { "metadata with a number", "{\"__metadata__\":{\"epoch\":3}}", 0, "'epoch'" },
    { "a tensor that is a list", ONE("[]"), 0, "tensor 'a' is described by no JSON object" },
    { "a key nobody knows",
      ONE("{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"strides\":[1]}"), 1,
      "unknown key 'strides'" },
    { "no dtype", ONE("{\"shape\":[1],\"data_offsets\":[0,1]}"), 1, "no 'dtype'" },
    { "a dtype that is a number", ONE("{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,1]}"), 1,
      "no 'dtype'" },
    { "a dtype with a zero inside",
      ONE("{\"dtype\":\"U8\\u0000\",\"shape\":[1],\"data_offsets\":[0,1]}"), 1, "no 'dtype'" },
    { "a dtype nobody knows", ONE("{\"dtype\":\"F12\",\"shape\":[1],\"data_offsets\":[0,1]}"), 1,
      "unknown dtype 'F12'" },
    { "a dtype in small letters", ONE("{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}"),
      4, "unknown dtype 'f32'" },
    { "a dtype longer than any",
      ONE("{\"dtype\":\"F32F32F32F32F32F32F32\",\"shape\":[1],\"data_offsets\":[0,4]}"), 4,
      "unknown dtype" },
    { "no shape", ONE("{\"dtype\":\"U8\",\"data_offsets\":[0,1]}"), 1, "no 'shape'" },
    { "a shape that is a number", ONE("{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}"), 1,
      "no 'shape'" },
    { "a negative axis", ONE("{\"dtype\":\"U8\",\"shape\":[1,-1],\"data_offsets\":[0,1]}"), 1,
      "axis 1 is no non-negative integer" },
    { "an axis with a fraction", ONE("{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}"),
      1, "axis 0 is no non-negative integer" },
    { "an axis over 63 bits",
      ONE("{\"dtype\":\"U8\",\"shape\":[18446744073709551617],\"data_offsets\":[0,1]}"), 1,
      "too big integer" },
    { "a product over 64 bits",
      ONE("{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}"), 0,
      "overflows" },
    { "bits over 64 bits",
      ONE("{\"dtype\":\"F32\",\"shape\":[1152921504606846976],\"data_offsets\":[0,0]}"), 0,
      "overflows" },
    { "half a byte", ONE("{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}"), 2,
      "not a whole number of bytes" },
    { "no offsets", ONE("{\"dtype\":\"U8\",\"shape\":[1]}"), 1, "data_offsets" },
    { "one offset", ONE("{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}"), 1,
      "data_offsets" },
    { "three offsets", ONE("{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}"), 1,
      "data_offsets" },
    { "a negative offset", ONE("{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}"), 1,
      "data_offsets" },
    { "an offset in words", ONE("{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[\"0\",1]}"), 1,
      "data_offsets" },
    { "an end before its begin", ONE("{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}"), 1,
      "ends before it" },
    { "fewer bytes than the shape", ONE("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}"),
      4, "needs 8" },
    { "more bytes than the shape", ONE("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}"),
      9, "needs 8" },
    { "bytes for an empty tensor", ONE("{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,4]}"),
      4, "needs 0" },
    { "two tensors at one place",
      "{" A_F32 ",\"d\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}", 24,
      "tensor 'd' overlaps" },
    { "an overlap of one byte",
      "{" A_F32 ",\"d\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[23,25]}}", 25,
      "tensor 'd' overlaps" },
    { "an empty tensor inside another",
      "{" A_F32 ",\"d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[5,5]}}", 24,
      "tensor 'd' overlaps" },
    { "a hole at the start", "{" B_I64 "}", 32, "tensor 'b' leaves a hole" },
    { "a hole between",
      "{" A_F32 ",\"d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[25,26]}}", 26,
      "tensor 'd' leaves a hole" },
    { "data that ends early", "{" A_F32 "}", 23, "truncated" },
    { "no data", "{" A_F32 "}", 0, "truncated" },
    { "data after the last tensor", "{" A_F32 "}", 25, "1 bytes after the last tensor" },
    { "data of no tensor", "{}", 3, "3 bytes after the last tensor" },
    { "a name that would drive the terminal", "{\"\\u001b[2J\\n\\u009b1m\":[]}", 0,
      "tensor '?[2J???1m'" },
};

START_TEST(lying_headers_are_refused_with_words)
{
    uint8_t file[FILE_BYTES_MAX];
    const size_t size = file_build(file, bad_cases[_i].header, bad_cases[_i].data_bytes);
    struct safetensors *set = (struct safetensors *)file;
    struct fire_error error = { 0 };
    const enum fire_status status = safetensors_open_memory(file, size, &set, &error);

    ck_error(bad_cases[_i].name, status, FIRE_BAD_REQUEST, &error, bad_cases[_i].words);
    ck_assert_ptr_null(set);
}
END_TEST

/* Sizes of the header that cannot be. */
static const struct {
    const char *name;
    uint64_t header_bytes;
    const char *words;
} prefix_cases[] = {
    { "none", 0, "smallest is 2" },
    { "one byte", 1, "smallest is 2" },
    { "one byte more than there is", 3, "runs past the end" },
    { "the limit", 100000000, "runs past the end" },
    { "over the limit", 100000001, "over the limit" },
    { "all bits", UINT64_MAX, "over the limit" },
    { "text, as of a pickle or a page", 0x4c4d5448223d3cull, "over the limit" },
};

START_TEST(impossible_header_sizes_are_refused)
{
    uint8_t file[10] = { [8] = '{', [9] = '}' };
    struct safetensors *set;
    struct fire_error error;
    enum fire_status status;

    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)(prefix_cases[_i].header_bytes >> (8 * i));
    status = safetensors_open_memory(file, sizeof(file), &set, &error);
    ck_error(prefix_cases[_i].name, status, FIRE_BAD_REQUEST, &error, prefix_cases[_i].words);
}
END_TEST

/* A copy of its own for each length, so that the address sanitizer sees one byte too many. */
START_TEST(a_file_cut_anywhere_is_refused)
{
    uint8_t file[FILE_BYTES_MAX];
    const size_t size = file_build(file, GOOD, 32);

    for (size_t length = 0; length < size; length++) {
        uint8_t *cut = malloc(length ? length : 1);
        struct safetensors *set;
        struct fire_error error;

        ck_assert_ptr_nonnull(cut);
        memcpy(cut, file, length);
        ck_assert_msg(safetensors_open_memory(cut, length, &set, &error) == FIRE_BAD_REQUEST,
                      "%zu bytes", length);
        ck_assert_ptr_null(set);
        free(cut);
    }
}
END_TEST

static volatile uint8_t seen; /* keeps reads alive */

/* Whatever the byte became: an error, or a set all of whose bytes can be read and add up. */
START_TEST(a_header_with_one_wrong_byte_is_refused_or_consistent)
{
    uint8_t file[FILE_BYTES_MAX];
    const size_t size = file_build(file, GOOD, 32);
    unsigned refused = 0;

    for (size_t at = 0; at < size - 32; at++) {
        for (unsigned value = 0; value < 256; value++) {
            const uint8_t before = file[at];
            struct safetensors *set;
            struct fire_error error;

            file[at] = (uint8_t)value;
            if (safetensors_open_memory(file, size, &set, &error) != FIRE_OK) {
                refused++;
                ck_assert_int_ne(error.message[0], 0);
            } else {
                uint64_t total = 0;

                for (size_t i = 0; i < safetensors_count(set); i++) {
                    const struct safetensors_entry *entry = safetensors_at(set, i);

                    total += entry->bytes;
                    for (uint64_t k = 0; k < entry->bytes; k++)
                        seen = ((const uint8_t *)entry->data)[k];
                }
                ck_assert_uint_eq(total, 32);
                safetensors_close(set);
            }
            file[at] = before;
        }
    }
    ck_assert_uint_gt(refused, 10000); /* most bytes matter */
}
END_TEST

START_TEST(a_long_name_is_cut_in_messages_between_characters)
{
    char header[512] = "{\"x";
    uint8_t file[FILE_BYTES_MAX];
    struct safetensors *set;
    struct fire_error error;
    size_t used = 3;

    for (int i = 0; i < 200; i++, used += 2) /* two bytes each, at odd places */
        snprintf(header + used, sizeof(header) - used, "\xc3\xa9");
    snprintf(header + used, sizeof(header) - used, "\":[]}");
    ck_error("long name", safetensors_open_memory(file, file_build(file, header, 0), &set, &error),
             FIRE_BAD_REQUEST, &error, "\xc3\xa9\xe2\x80\xa6' is described");
}
END_TEST

START_TEST(what_the_system_refuses_is_an_io_error)
{
    struct safetensors *set;
    struct fire_error error;

    ck_error("missing", safetensors_open(in_folder("none"), &set, &error), FIRE_IO, &error,
             "No such file");
    ck_assert_ptr_null(set);
    ck_error("empty directory", safetensors_open(folder, &set, &error), FIRE_IO, &error,
             "holds neither");
    ck_assert_ptr_null(set);
    file_put(in_folder("empty"), "", 0);
    ck_error("empty file", safetensors_open(in_folder("empty"), &set, &error), FIRE_BAD_REQUEST,
             &error, "0 bytes are too few");
}
END_TEST

START_TEST(a_pipe_is_read_whole_and_a_stream_of_zeros_is_refused_early)
{
    static const char header[] =
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[40000],\"data_offsets\":[0,40000]}}";
    static uint8_t data[40000]; /* many pages, yet less than a pipe holds */
    const uint8_t prefix[8] = { sizeof(header) - 1 };
    struct safetensors *set;
    struct fire_error error;
    int ends[2];
    int kept;

    memset(data, 0x5a, sizeof(data));
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], prefix, 8), 8);
    ck_assert_int_eq(write(ends[1], header, sizeof(header) - 1), (ssize_t)sizeof(header) - 1);
    ck_assert_int_eq(write(ends[1], data, sizeof(data)), (ssize_t)sizeof(data));
    close(ends[1]);
    kept = descriptor_divert(STDIN_FILENO, ends[0]);
    ck_assert_int_eq(safetensors_open("-", &set, &error), FIRE_OK);
    descriptor_restore(STDIN_FILENO, kept);
    ck_assert_uint_eq(safetensors_count(set), 1);
    /* Advice that drops pages of a mapping would erase memory of any other kind. */
    safetensors_will_need(set, safetensors_at(set, 0));
    safetensors_done_with(set, safetensors_at(set, 0));
    ck_assert_mem_eq(safetensors_at(set, 0)->data, data, sizeof(data));
    safetensors_close(set);
    ck_error("zeros", safetensors_open("/dev/zero", &set, &error), FIRE_BAD_REQUEST, &error,
             "smallest is 2");
}
END_TEST

START_TEST(dropped_pages_come_back_from_the_file)
{
    static uint8_t data[40000];
    struct safetensors_entry entry = { .name = "w",
                                       .dtype_name = "U8",
                                       .shape = { 1, { sizeof(data) } },
                                       .data = data,
                                       .bytes = sizeof(data) };
    struct safetensors *set;
    struct fire_error error;

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 7 + i / 256);
    ck_assert_int_eq(safetensors_save(in_folder("w"), &entry, 1, NULL, &error), FIRE_OK);
    ck_assert_int_eq(safetensors_open(in_folder("w"), &set, &error), FIRE_OK);
    safetensors_will_need(set, safetensors_at(set, 0));
    ck_assert_mem_eq(safetensors_at(set, 0)->data, data, sizeof(data));
    safetensors_done_with(set, safetensors_at(set, 0));
    ck_assert_mem_eq(safetensors_at(set, 0)->data, data, sizeof(data));
    safetensors_close(set);
}
END_TEST

#define INDEX      "model.safetensors.index.json"
#define SHARD_ONE  "model-00001-of-00002.safetensors"
#define SHARD_TWO  "model-00002-of-00002.safetensors"
#define HEADER_ONE "{\"m\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"
#define HEADER_TWO                                                                                 \
    "{" META ",\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"                   \
    "\"z\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]}}"
#define MAP(text) "{\"metadata\":{\"total_size\":15},\n \"weight_map\":{" text "}}\n"
#define MAP_GOOD                                                                                   \
    MAP("\"a\":\"" SHARD_TWO "\",\"m\":\"" SHARD_ONE "\","                                         \
        "\"z\":\"" SHARD_TWO "\"")

/* A directory "in" with two shards and `index`. */
static const char *sharded_make(const char *index)
{
    static char path[PATH_BYTES * 2];

    snprintf(path, sizeof(path), "%s/in", folder);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    file_put_built(in_folder("in/" SHARD_ONE), HEADER_ONE, 8);
    file_put_built(in_folder("in/" SHARD_TWO), HEADER_TWO, 7);
    file_put(in_folder("in/" INDEX), index, strlen(index));
    return path;
}

START_TEST(a_directory_opens_shard_by_shard)
{
    struct safetensors *set;
    struct fire_error error = { 0 };
    const char *path = sharded_make(MAP_GOOD);

    ck_assert_msg(safetensors_open(path, &set, &error) == FIRE_OK, "%s", error.message);
    ck_assert(safetensors_sharded(set));
    ck_assert_uint_eq(safetensors_count(set), 3);
    ck_assert_str_eq(safetensors_at(set, 0)->name, "m");
    ck_assert_str_eq(safetensors_at(set, 1)->name, "a");
    ck_assert_str_eq(safetensors_at(set, 2)->name, "z");
    ck_assert_uint_eq(safetensors_find(set, "m")->file_index, 0);
    ck_assert_uint_eq(safetensors_find(set, "z")->file_index, 1);
    ck_assert_int_eq(*(const uint8_t *)safetensors_find(set, "z")->data, 4);
    safetensors_close(set);
}
END_TEST

/* Indexes that lie about their shards. */
static const struct {
    const char *name;
    const char *index;
    enum fire_status status;
    const char *words;
} index_cases[] = {
    { "not JSON", "{", FIRE_BAD_REQUEST, "not valid JSON" },
    { "an empty file", "", FIRE_BAD_REQUEST, "not valid JSON" },
    { "a list", "[]", FIRE_BAD_REQUEST, "no 'weight_map'" },
    { "no map", "{}", FIRE_BAD_REQUEST, "no 'weight_map'" },
    { "an empty map", MAP(""), FIRE_BAD_REQUEST, "names no tensor" },
    { "a tensor twice", MAP("\"a\":\"x\",\"a\":\"x\""), FIRE_BAD_REQUEST, "duplicate" },
    { "a number for a shard", MAP("\"a\":1"), FIRE_BAD_REQUEST, "tensor 'a' has no shard" },
    { "an absolute path", MAP("\"a\":\"/etc/passwd\""), FIRE_BAD_REQUEST, "no plain file name" },
    { "a path upward", MAP("\"a\":\"../x.safetensors\""), FIRE_BAD_REQUEST, "no plain file name" },
    { "the directory above", MAP("\"a\":\"..\""), FIRE_BAD_REQUEST, "no plain file name" },
    { "the directory itself", MAP("\"a\":\".\""), FIRE_BAD_REQUEST, "no plain file name" },
    { "no name", MAP("\"a\":\"\""), FIRE_BAD_REQUEST, "no plain file name" },
    { "a zero in a name", MAP("\"a\":\"x\\u0000y\""), FIRE_BAD_REQUEST, "not valid JSON" },
    { "a missing shard", MAP("\"a\":\"none.safetensors\""), FIRE_IO, "none.safetensors" },
    { "the index as a shard", MAP("\"a\":\"" INDEX "\""), FIRE_BAD_REQUEST, "over the limit" },
    { "a tensor that is nowhere",
      MAP("\"a\":\"" SHARD_TWO "\",\"m\":\"" SHARD_ONE "\",\"z\":\"" SHARD_TWO
          "\",\"q\":\"" SHARD_ONE "\""),
      FIRE_BAD_REQUEST, "tensor 'q' is said to be in '" SHARD_ONE "'" },
    { "a tensor in the other shard",
      MAP("\"a\":\"" SHARD_ONE "\",\"m\":\"" SHARD_ONE "\",\"z\":\"" SHARD_TWO "\""),
      FIRE_BAD_REQUEST, "tensor 'a' is said to be in '" SHARD_ONE "'" },
    { "a tensor the index leaves out", MAP("\"m\":\"" SHARD_ONE "\",\"z\":\"" SHARD_TWO "\""),
      FIRE_BAD_REQUEST, SHARD_TWO ": tensor 'a' is not in " INDEX },
};

START_TEST(an_index_that_lies_is_refused)
{
    struct safetensors *set;
    struct fire_error error = { 0 };
    const char *path = sharded_make(index_cases[_i].index);

    ck_error(index_cases[_i].name, safetensors_open(path, &set, &error), index_cases[_i].status,
             &error, index_cases[_i].words);
    ck_assert_ptr_null(set);
}
END_TEST

START_TEST(a_name_in_two_shards_is_refused)
{
    struct safetensors *set;
    struct fire_error error;
    const char *path = sharded_make(MAP_GOOD);

    file_put_built(in_folder("in/" SHARD_ONE),
                   "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    ck_error("twice", safetensors_open(path, &set, &error), FIRE_BAD_REQUEST, &error,
             "tensor 'a' is also in");
    ck_assert_ptr_nonnull(strstr(error.message, SHARD_ONE));
    ck_assert_ptr_nonnull(strstr(error.message, SHARD_TWO));
}
END_TEST

START_TEST(a_pipe_in_place_of_a_shard_does_not_hang)
{
    struct safetensors *set;
    struct fire_error error;
    const char *path = sharded_make(MAP_GOOD);

    ck_assert_int_eq(unlink(in_folder("in/" SHARD_TWO)), 0);
    ck_assert_int_eq(mkfifo(in_folder("in/" SHARD_TWO), 0666), 0);
    ck_error("pipe", safetensors_open(path, &set, &error), FIRE_BAD_REQUEST, &error,
             "0 bytes are too few");
}
END_TEST

/* Opens, writes "a" complemented and everything else as it is, last entry first, from another
 * thread, and commits. */
struct copier {
    struct safetensors *set;
    struct safetensors_writer *writer;
    struct fire_error error;
    enum fire_status status;
};

static void *copy_backwards(void *data)
{
    struct copier *copier = data;

    for (size_t i = safetensors_count(copier->set); i-- > 0;) {
        const struct safetensors_entry *entry = safetensors_at(copier->set, i);
        uint8_t changed[64];

        for (uint64_t k = 0; k < entry->bytes; k++)
            changed[k] = (uint8_t) ~((const uint8_t *)entry->data)[k];
        copier->status = strcmp(entry->name, "a") == 0
                             ? safetensors_write(copier->writer, entry, changed, &copier->error)
                             : safetensors_copy(copier->writer, entry, &copier->error);
        if (copier->status != FIRE_OK)
            break;
    }
    return NULL;
}

static enum fire_status copy_changed(const char *from, const char *to, struct fire_error *error)
{
    struct copier copier = { 0 };
    pthread_t thread;

    copier.status = safetensors_open(from, &copier.set, &copier.error);
    ck_assert_msg(copier.status == FIRE_OK, "%s", copier.error.message);
    copier.status = safetensors_writer_open(copier.set, to, &copier.writer, &copier.error);
    if (copier.status == FIRE_OK) {
        ck_assert_int_eq(pthread_create(&thread, NULL, copy_backwards, &copier), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
    } else {
        ck_assert_ptr_null(copier.writer);
    }
    if (copier.status == FIRE_OK)
        copier.status = safetensors_writer_commit(copier.writer, &copier.error);
    safetensors_writer_close(copier.writer);
    safetensors_close(copier.set);
    *error = copier.error;
    return copier.status;
}

/* The file `path` is GOOD with "a" complemented. */
static void ck_good_changed(const char *path)
{
    uint8_t want[FILE_BYTES_MAX];
    uint8_t got[FILE_BYTES_MAX];
    const size_t size = file_build(want, GOOD, 32);

    for (size_t i = size - 32; i < size - 8; i++)
        want[i] = (uint8_t)~want[i];
    ck_assert_uint_eq(file_get(path, got), size);
    ck_assert_mem_eq(got, want, size);
}

START_TEST(a_copy_differs_only_where_it_was_changed)
{
    struct fire_error error;
    struct stat about;
    mode_t mask;

    file_put_built(in_folder("in"), GOOD, 32);
    mask = umask(027);
    ck_assert_int_eq(copy_changed(in_folder("in"), in_folder("out"), &error), FIRE_OK);
    umask(mask);
    ck_good_changed(in_folder("out"));
    ck_assert_int_eq(stat(in_folder("out"), &about), 0);
    ck_assert_int_eq(about.st_mode & 0777, 0640);
    ck_assert_int_eq(names_count(folder), 2);
}
END_TEST

START_TEST(a_replaced_file_passes_on_its_permissions_and_a_link_its_target)
{
    struct fire_error error;
    struct stat about;

    file_put_built(in_folder("in"), GOOD, 32);
    file_put(in_folder("real"), "old", 3);
    ck_assert_int_eq(chmod(in_folder("real"), 0600), 0);
    ck_assert_int_eq(symlink("real", in_folder("link")), 0);
    ck_assert_int_eq(copy_changed(in_folder("in"), in_folder("link"), &error), FIRE_OK);
    ck_good_changed(in_folder("real"));
    ck_assert_int_eq(lstat(in_folder("link"), &about), 0);
    ck_assert(S_ISLNK(about.st_mode));
    ck_assert_int_eq(lstat(in_folder("real"), &about), 0);
    ck_assert_int_eq(about.st_mode & 0777, 0600);
    ck_assert_int_eq(names_count(folder), 3);
}
END_TEST

START_TEST(a_directory_is_copied_with_its_index)
{
    struct fire_error error = { 0 };
    uint8_t bytes[FILE_BYTES_MAX];
    uint8_t want[FILE_BYTES_MAX];
    size_t size;
    const char *path = sharded_make(MAP_GOOD);

    ck_assert_msg(copy_changed(path, in_folder("out"), &error) == FIRE_OK, "%s", error.message);
    ck_assert_int_eq(names_count(in_folder("out")), 3);
    files_equal(in_folder("in/" INDEX), in_folder("out/" INDEX));
    files_equal(in_folder("in/" SHARD_ONE), in_folder("out/" SHARD_ONE));
    size = file_build(want, HEADER_TWO, 7);
    for (size_t i = size - 7; i < size - 3; i++)
        want[i] = (uint8_t)~want[i];
    ck_assert_uint_eq(file_get(in_folder("out/" SHARD_TWO), bytes), size);
    ck_assert_mem_eq(bytes, want, size);
    /* Again, over what is there. */
    ck_assert_int_eq(copy_changed(path, in_folder("out"), &error), FIRE_OK);
    ck_assert_int_eq(names_count(in_folder("out")), 3);
}
END_TEST

START_TEST(a_directory_without_index_is_a_set_of_one)
{
    struct fire_error error = { 0 };
    const char *in = in_folder("in");

    ck_assert_int_eq(mkdir(in, 0777), 0);
    file_put_built(in_folder("in/model.safetensors"), GOOD, 32);
    ck_assert_int_eq(copy_changed(in, in_folder("out"), &error), FIRE_OK);
    ck_good_changed(in_folder("out/model.safetensors"));
    ck_assert_int_eq(names_count(in_folder("out")), 1);
    file_put(in_folder("out/" INDEX), "{}", 2);
    ck_error("stale index", copy_changed(in, in_folder("out"), &error), FIRE_BAD_REQUEST, &error,
             "of another checkpoint");
    ck_assert_int_eq(names_count(in_folder("out")), 2);
}
END_TEST

/* Names that are the input, or cannot be written. Made in the folder: "in" (a file), "hard" and
 * "soft" (links to it), "dangling" (a link to nothing), "dir" (a directory). */
static const struct {
    const char *name;
    const char *output;
    enum fire_status status;
    const char *words;
} output_cases[] = {
    { "the input", "in", FIRE_BAD_REQUEST, "is the input itself" },
    { "the input, roundabout", "dir/../in", FIRE_BAD_REQUEST, "is the input itself" },
    { "a hard link to the input", "hard", FIRE_BAD_REQUEST, "is the input itself" },
    { "a symbolic link to the input", "soft", FIRE_BAD_REQUEST, "is the input itself" },
    { "a link to nothing", "dangling", FIRE_IO, "cannot follow the link" },
    { "a directory", "dir", FIRE_IO, "Is a directory" },
    { "a directory with a slash", "none/", FIRE_IO, "Is a directory" },
    { "a directory that is not there", "none/out", FIRE_IO, "No such file" },
    { "a file in place of a directory", "in/out", FIRE_IO, "Not a directory" },
};

START_TEST(an_output_that_cannot_be_is_refused_and_nothing_changes)
{
    uint8_t before[FILE_BYTES_MAX];
    uint8_t after[FILE_BYTES_MAX];
    struct fire_error error;
    size_t size;

    file_put_built(in_folder("in"), GOOD, 32);
    ck_assert_int_eq(link(in_folder("in"), in_folder("hard")), 0);
    ck_assert_int_eq(symlink("in", in_folder("soft")), 0);
    ck_assert_int_eq(symlink("nothing", in_folder("dangling")), 0);
    ck_assert_int_eq(mkdir(in_folder("dir"), 0777), 0);
    size = file_get(in_folder("in"), before);
    ck_error(output_cases[_i].name,
             copy_changed(in_folder("in"), in_folder(output_cases[_i].output), &error),
             output_cases[_i].status, &error, output_cases[_i].words);
    ck_assert_int_eq(names_count(folder), 5);
    ck_assert_int_eq(names_count(in_folder("dir")), 0);
    ck_assert_uint_eq(file_get(in_folder("in"), after), size);
    ck_assert_mem_eq(before, after, size);
}
END_TEST

START_TEST(a_directory_is_not_written_over_itself_or_into_a_file)
{
    struct fire_error error;
    const char *path = sharded_make(MAP_GOOD);

    ck_assert_int_eq(symlink("in", in_folder("soft")), 0);
    ck_assert_int_eq(mkdir(in_folder("links"), 0777), 0);
    ck_assert_int_eq(symlink("../in/" SHARD_TWO, in_folder("links/" SHARD_TWO)), 0);
    file_put(in_folder("file"), "x", 1);
    ck_error("itself", copy_changed(path, path, &error), FIRE_BAD_REQUEST, &error, "input itself");
    ck_error("by a link", copy_changed(path, in_folder("soft"), &error), FIRE_BAD_REQUEST, &error,
             "input itself");
    ck_error("shard by a link", copy_changed(path, in_folder("links"), &error), FIRE_BAD_REQUEST,
             &error, "input itself");
    ck_error("a file", copy_changed(path, in_folder("file"), &error), FIRE_BAD_REQUEST, &error,
             "give a directory");
    ck_error("a stream", copy_changed(path, "-", &error), FIRE_BAD_REQUEST, &error,
             "give a directory");
    ck_error("no parent", copy_changed(path, in_folder("none/out"), &error), FIRE_IO, &error,
             "No such file");
    ck_assert_int_eq(names_count(folder), 4);
    ck_assert_int_eq(names_count(path), 3);
    ck_assert_int_eq(names_count(in_folder("links")), 1);
}
END_TEST

START_TEST(closing_without_commit_leaves_nothing)
{
    struct safetensors *set;
    struct safetensors_writer *writer;
    struct fire_error error;
    const char *path = sharded_make(MAP_GOOD);

    ck_assert_int_eq(safetensors_open(path, &set, &error), FIRE_OK);
    ck_assert_int_eq(safetensors_writer_open(set, in_folder("out"), &writer, &error), FIRE_OK);
    ck_assert_int_eq(names_count(in_folder("out")), 3);
    ck_assert_int_eq(safetensors_copy(writer, safetensors_at(set, 0), &error), FIRE_OK);
    ck_error("twice", safetensors_copy(writer, safetensors_at(set, 0), &error), FIRE_BAD_REQUEST,
             &error, "written already");
    ck_error("too early", safetensors_writer_commit(writer, &error), FIRE_BAD_REQUEST, &error,
             "tensor 'a' was not written");
    safetensors_writer_close(writer);
    safetensors_writer_close(NULL);
    ck_assert_int_eq(access(in_folder("out"), F_OK), -1);
    safetensors_close(set);
}
END_TEST

/* The last name to be given is the index's; a directory in its place makes that rename fail after
 * both shards have theirs. */
START_TEST(a_failed_rename_takes_new_files_back_and_tells_of_replaced_ones)
{
    struct safetensors *set;
    struct safetensors_writer *writer;
    struct fire_error error;
    const char *path = sharded_make(MAP_GOOD);

    ck_assert_int_eq(mkdir(in_folder("out"), 0777), 0);
    file_put(in_folder("out/" SHARD_TWO), "old", 3);
    ck_assert_int_eq(safetensors_open(path, &set, &error), FIRE_OK);
    ck_assert_int_eq(safetensors_writer_open(set, in_folder("out"), &writer, &error), FIRE_OK);
    for (size_t i = 0; i < safetensors_count(set); i++)
        ck_assert_int_eq(safetensors_copy(writer, safetensors_at(set, i), &error), FIRE_OK);
    ck_assert_int_eq(mkdir(in_folder("out/" INDEX), 0777), 0);
    ck_error("rename", safetensors_writer_commit(writer, &error), FIRE_IO, &error,
             "1 of 3 files there were already replaced");
    safetensors_writer_close(writer);
    safetensors_close(set);
    ck_assert_int_eq(names_count(in_folder("out")), 2); /* the replaced shard and our obstacle */
    ck_assert_int_eq(access(in_folder("out/" SHARD_ONE), F_OK), -1);
}
END_TEST

START_TEST(a_disk_that_is_full_at_the_start_is_noticed_at_the_start)
{
    struct fire_error error;
    enum fire_status status;

    file_put_built(in_folder("in"), GOOD, 32);
    file_limit(100);
    status = copy_changed(in_folder("in"), in_folder("out"), &error);
    file_limit(RLIM_INFINITY);
    ck_error("limit", status, FIRE_IO, &error, "File too large");
    ck_assert_ptr_nonnull(strstr(error.message, "/out: "));
    ck_assert_int_eq(names_count(folder), 1);
}
END_TEST

START_TEST(a_disk_that_fills_up_on_the_way_leaves_nothing)
{
    struct safetensors *set;
    struct safetensors_writer *writer;
    struct fire_error error;
    enum fire_status status;
    uint8_t bytes[FILE_BYTES_MAX];

    file_put_built(in_folder("in"), GOOD, 32);
    file_put(in_folder("out"), "old", 3);
    ck_assert_int_eq(safetensors_open(in_folder("in"), &set, &error), FIRE_OK);
    ck_assert_int_eq(safetensors_writer_open(set, in_folder("out"), &writer, &error), FIRE_OK);
    /* "a" fits but for its last byte: a short write, then an error. */
    file_limit(safetensors_find(set, "a")->file_offset + 23);
    status = safetensors_copy(writer, safetensors_find(set, "a"), &error);
    file_limit(RLIM_INFINITY);
    ck_error("late", status, FIRE_IO, &error, "File too large");
    ck_error("commit", safetensors_writer_commit(writer, &error), FIRE_BAD_REQUEST, &error,
             "tensor 'a' was not written");
    safetensors_writer_close(writer);
    safetensors_close(set);
    ck_assert_int_eq(names_count(folder), 2);
    ck_assert_uint_eq(file_get(in_folder("out"), bytes), 3);
}
END_TEST

/* Written last entry first, yet the bytes come out in file order. */
/* Large tensors go past the page cache, but for the ends that share a block with others. */
static const struct {
    const char *name;
    uint64_t bytes[3]; /* of three tensors in a row */
} large_cases[] = {
    { "blocks and some bytes", { (2 << 20) + 4095, (3 << 20) + 1, 5 } },
    { "more than a piece", { 1, (17 << 20) + 77, (1 << 20) } },
    { "just too small and just large enough", { (1 << 20) - 1, 1 << 20, (1 << 20) + 1 } },
    { "a block that three share", { (1 << 20) + 9, 11, (1 << 20) + 13 } },
};

static void ck_large_saved(const char *path, const uint8_t *data, const uint64_t *bytes)
{
    struct safetensors_entry entries[3];
    struct safetensors *set;
    struct fire_error error;

    for (int i = 0; i < 3; i++)
        entries[i] = (struct safetensors_entry){ .name = (const char *[]){ "a", "b", "c" }[i],
                                                 .dtype_name = "U8",
                                                 .shape = { 1, { bytes[i] } },
                                                 .data = data + 3 * i,
                                                 .bytes = bytes[i] };
    ck_assert_msg(safetensors_save(path, entries, 3, NULL, &error) == FIRE_OK, "%s", error.message);
    ck_assert_int_eq(safetensors_open(path, &set, &error), FIRE_OK);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(safetensors_at(set, i)->bytes, bytes[i]);
        ck_assert_int_eq(memcmp(safetensors_at(set, i)->data, data + 3 * i, bytes[i]), 0);
    }
    safetensors_close(set);
}

START_TEST(large_tensors_arrive_whole_on_any_file_system)
{
    const size_t bytes = 18 << 20;
    uint8_t *data = malloc(bytes);
    char path[PATH_BYTES];

    ck_assert_ptr_nonnull(data);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 7 + i / 251 + i / 4096);
    ck_large_saved(in_folder("x"), data, large_cases[_i].bytes);
    ck_assert_int_eq(names_count(folder), 1);
    if (access("/dev/shm", W_OK) == 0) { /* memory has no way past the page cache */
        snprintf(path, sizeof(path), "/dev/shm/fire-test-%ld", (long)getpid());
        ck_large_saved(path, data, large_cases[_i].bytes);
        unlink(path);
    }
    free(data);
}
END_TEST

START_TEST(a_large_tensor_that_does_not_fit_is_an_error)
{
    const uint64_t bytes[3] = { 4 << 20, 4 << 20, 1 };
    uint8_t *data = calloc(1, (4 << 20) + 16);
    struct safetensors *set;
    struct safetensors_writer *writer;
    struct fire_error error;
    enum fire_status status;

    ck_assert_ptr_nonnull(data);
    ck_large_saved(in_folder("in"), data, bytes);
    ck_assert_int_eq(safetensors_open(in_folder("in"), &set, &error), FIRE_OK);
    ck_assert_int_eq(safetensors_writer_open(set, in_folder("out"), &writer, &error), FIRE_OK);
    file_limit(safetensors_find(set, "b")->file_offset + (2 << 20) + 1);
    status = safetensors_copy(writer, safetensors_find(set, "a"), &error);
    if (status == FIRE_OK)
        status = safetensors_copy(writer, safetensors_find(set, "b"), &error);
    file_limit(RLIM_INFINITY);
    ck_error("b", status, FIRE_IO, &error, "File too large");
    safetensors_writer_close(writer);
    safetensors_close(set);
    ck_assert_int_eq(names_count(folder), 1);
    free(data);
}
END_TEST

START_TEST(standard_output_gets_the_entries_in_order)
{
    struct fire_error error;
    enum fire_status status;
    int kept;

    file_put_built(in_folder("in"), GOOD, 32);
    kept = descriptor_divert(STDOUT_FILENO, open(in_folder("out"), O_WRONLY | O_CREAT, 0666));
    status = copy_changed(in_folder("in"), "-", &error);
    descriptor_restore(STDOUT_FILENO, kept);
    ck_assert_int_eq(status, FIRE_OK);
    ck_good_changed(in_folder("out"));
}
END_TEST

START_TEST(standard_output_that_is_the_input_is_refused)
{
    struct fire_error error;
    enum fire_status status;
    uint8_t bytes[FILE_BYTES_MAX];
    int kept;

    file_put_built(in_folder("in"), GOOD, 32);
    kept = descriptor_divert(STDOUT_FILENO, open(in_folder("in"), O_WRONLY | O_APPEND));
    status = copy_changed(in_folder("in"), "-", &error);
    descriptor_restore(STDOUT_FILENO, kept);
    ck_error("stdout", status, FIRE_BAD_REQUEST, &error, "input itself");
    ck_assert_uint_eq(file_get(in_folder("in"), bytes), 8 + strlen(GOOD) + 32);
}
END_TEST

START_TEST(a_device_is_written_to_and_never_replaced)
{
    struct fire_error error;
    struct stat about;

    file_put_built(in_folder("in"), GOOD, 32);
    ck_error("full", copy_changed(in_folder("in"), "/dev/full", &error), FIRE_IO, &error,
             "No space left on device; free some space");
    ck_assert_int_eq(stat("/dev/full", &about), 0);
    ck_assert(S_ISCHR(about.st_mode));
    ck_assert_int_eq(copy_changed(in_folder("in"), "/dev/null", &error), FIRE_OK);
    ck_assert_int_eq(stat("/dev/null", &about), 0);
    ck_assert(S_ISCHR(about.st_mode));
}
END_TEST

START_TEST(a_reader_that_left_is_an_error)
{
    struct fire_error error;
    enum fire_status status;
    int ends[2];
    int kept;

    file_put_built(in_folder("in"), GOOD, 32);
    signal(SIGPIPE, SIG_IGN);
    ck_assert_int_eq(pipe(ends), 0);
    close(ends[0]);
    kept = descriptor_divert(STDOUT_FILENO, ends[1]);
    status = copy_changed(in_folder("in"), "-", &error);
    descriptor_restore(STDOUT_FILENO, kept);
    ck_error("pipe", status, FIRE_IO, &error, "Broken pipe");
}
END_TEST

/* 12 bytes of F32, 3 of U8; a scalar; an empty one. */
static const float save_floats[3] = { 1.0f, -2.5f, 3e-30f };
static const uint8_t save_bytes[3] = { 7, 8, 9 };
static const struct safetensors_entry save_entries[] = {
    { .name = "layer.\"0\"/w\xc3\xa9",
      .dtype_name = "F32",
      .shape = { 2, { 3, 1 } },
      .data = save_floats,
      .bytes = 12 },
    { .name = "mask", .dtype_name = "U8", .shape = { 1, { 3 } }, .data = save_bytes, .bytes = 3 },
    { .name = "step", .dtype_name = "F32", .shape = { 0 }, .data = save_floats + 1, .bytes = 4 },
    { .name = "none", .dtype_name = "BF16", .shape = { 2, { 4, 0 } }, .data = NULL, .bytes = 0 },
};
#define SAVE_COUNT (sizeof(save_entries) / sizeof(save_entries[0]))

static void ck_header_has(const char *path, const char *words)
{
    uint8_t bytes[FILE_BYTES_MAX];
    const size_t size = file_get(path, bytes);

    ck_assert_msg(memmem(bytes, size, words, strlen(words)), "'%s' is not in the header", words);
}

START_TEST(what_was_saved_is_read_back)
{
    static const char *const metadata[] = { "format", "pt", "note", "a \"b\"", NULL };
    struct safetensors *set;
    struct fire_error error = { 0 };

    ck_assert_msg(safetensors_save(in_folder("x"), save_entries, SAVE_COUNT, metadata, &error) ==
                      FIRE_OK,
                  "%s", error.message);
    ck_assert_int_eq(names_count(folder), 1);
    ck_assert_int_eq(safetensors_open(in_folder("x"), &set, &error), FIRE_OK);
    ck_assert_uint_eq(safetensors_count(set), SAVE_COUNT);
    ck_assert_uint_eq(safetensors_at(set, 0)->file_offset % 8, 0);
    for (size_t i = 0; i < SAVE_COUNT; i++) {
        const struct safetensors_entry *want = &save_entries[i];
        const struct safetensors_entry *got = safetensors_at(set, i);

        ck_assert_str_eq(got->name, want->name);
        ck_assert_str_eq(got->dtype_name, want->dtype_name);
        ck_assert_uint_eq(got->shape.axes, want->shape.axes);
        for (uint32_t k = 0; k < want->shape.axes; k++)
            ck_assert_uint_eq(got->shape.size[k], want->shape.size[k]);
        ck_assert_uint_eq(got->bytes, want->bytes);
        if (want->bytes)
            ck_assert_mem_eq(got->data, want->data, want->bytes);
    }
    safetensors_close(set);
    /* The header is a promise to other readers, so its text is checked too. */
    ck_header_has(in_folder("x"),
                  "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"a \\\"b\\\"\"},");
    ck_header_has(in_folder("x"),
                  "\"mask\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[12,15]},");
}
END_TEST

/* Entries that cannot be saved; each spoils the first of save_entries in one way. */
static const struct {
    const char *name;
    struct safetensors_entry entry;
    const char *words;
} save_cases[] = {
    { "a name twice", { .name = "mask", .dtype_name = "U8", .shape = { 1, { 0 } } }, "is taken" },
    { "the name of the metadata",
      { .name = "__metadata__", .dtype_name = "U8", .shape = { 1, { 0 } } },
      "is taken" },
    { "a name that is no UTF-8",
      { .name = "\xff", .dtype_name = "U8", .shape = { 1, { 0 } } },
      "not valid UTF-8" },
    { "an unknown dtype", { .name = "x", .dtype_name = "F33" }, "unknown dtype 'F33'" },
    { "too few bytes", { .name = "x", .dtype_name = "F32", .bytes = 3 }, "needs 4" },
    { "overflow",
      { .name = "x", .dtype_name = "U8", .shape = { 2, { 1ull << 40, 1ull << 40 } } },
      "overflows" },
    { "too many axes", { .name = "x", .dtype_name = "U8", .too_many_axes = true }, "axes" },
};

START_TEST(what_cannot_be_read_back_is_not_saved)
{
    struct safetensors_entry entries[SAVE_COUNT];
    struct fire_error error;

    memcpy(entries, save_entries, sizeof(entries));
    entries[SAVE_COUNT - 1] = save_cases[_i].entry;
    ck_error(save_cases[_i].name,
             safetensors_save(in_folder("x"), entries, SAVE_COUNT, NULL, &error), FIRE_BAD_REQUEST,
             &error, save_cases[_i].words);
    ck_assert_int_eq(names_count(folder), 0);
}
END_TEST

/* The linker sends the allocations of the code under test, and of jansson, which it told to use its
 * own, through these; the one numbered `allocation_fails` gets nothing. */
static unsigned allocation_fails; /* counts down to the failing one; 0: none will fail */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t length);

static bool allocation_refused(void)
{
    if (allocation_fails == 0 || --allocation_fails > 0)
        return false;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t bytes)
{
    return allocation_refused() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return allocation_refused() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return allocation_refused() ? NULL : __real_realloc(old, bytes);
}

char *__wrap_strndup(const char *text, size_t length)
{
    const size_t bytes = strnlen(text, length);
    char *copy = __wrap_malloc(bytes + 1);

    if (copy) {
        memcpy(copy, text, bytes);
        copy[bytes] = 0;
    }
    return copy;
}

char *__wrap_strdup(const char *text)
{
    return __wrap_strndup(text, strlen(text));
}

/* Opens `from` and copies it to `to`, last entry first: every allocation of reader and writer. */
static enum fire_status copy_plain(const char *from, const char *to, struct fire_error *error)
{
    struct safetensors *set = NULL;
    struct safetensors_writer *writer = NULL;
    enum fire_status status = safetensors_open(from, &set, error);

    if (status == FIRE_OK)
        status = safetensors_writer_open(set, to, &writer, error);
    for (size_t i = set ? safetensors_count(set) : 0; i-- > 0 && status == FIRE_OK;)
        status = safetensors_copy(writer, safetensors_at(set, i), error);
    if (status == FIRE_OK)
        status = safetensors_writer_commit(writer, error);
    safetensors_writer_close(writer);
    safetensors_close(set);
    return status;
}

static enum fire_status save_some(const char *from, const char *to, struct fire_error *error)
{
    static const char *const metadata[] = { "format", "pt", NULL };

    (void)from;
    return safetensors_save(to, save_entries, SAVE_COUNT, metadata, error);
}

static const struct {
    const char *name;
    enum fire_status (*work)(const char *from, const char *to, struct fire_error *error);
    const char *from; /* in the folder, where "in" is a sharded set and "file" a file */
    const char *to;   /* NULL: a device */
    unsigned allocations_min;
} allocation_cases[] = {
    { "a directory", copy_plain, "in", "out", 50 },
    { "a file", copy_plain, "file", "out", 30 },
    { "a stream", copy_plain, "file", NULL, 30 },
    { "a new file", save_some, NULL, "out", 30 },
};

START_TEST(every_allocation_may_fail_and_leaves_nothing)
{
    const char *from = allocation_cases[_i].from ? in_folder(allocation_cases[_i].from) : NULL;
    const char *to = allocation_cases[_i].to ? in_folder(allocation_cases[_i].to) : "/dev/null";
    enum fire_status status = FIRE_NO_MEMORY;
    unsigned number = 0;

    sharded_make(MAP_GOOD);
    file_put_built(in_folder("file"), GOOD, 32);
    while (status != FIRE_OK) {
        struct fire_error error = { 0 };

        allocation_fails = ++number;
        status = allocation_cases[_i].work(from, to, &error);
        allocation_fails = 0;
        ck_assert_msg(status == FIRE_OK || status == FIRE_NO_MEMORY, "%s, allocation %u: %s",
                      allocation_cases[_i].name, number, error.message);
        if (status == FIRE_OK)
            break;
        ck_assert_ptr_nonnull(strstr(error.message, "could not allocate"));
        ck_assert_msg(names_count(folder) == 2, "%s, allocation %u left something",
                      allocation_cases[_i].name, number);
    }
    ck_assert_msg(number > allocation_cases[_i].allocations_min, "%s: only %u allocations",
                  allocation_cases[_i].name, number);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

static Suite *reader_suite(void)
{
    Suite *suite = suite_create("safetensors reader");
    TCase *memory = tcase_create("memory");
    TCase *files = tcase_create("files");

    tcase_set_timeout(memory, 120);
    tcase_add_test(memory, entries_come_in_file_order_with_everything_about_them);
    tcase_add_loop_test(memory, every_dtype_has_its_size_and_only_four_are_ours, 0,
                        COUNT(dtype_cases));
    tcase_add_loop_test(memory, unusual_but_right_files_open, 0, COUNT(good_cases));
    tcase_add_loop_test(memory, lying_headers_are_refused_with_words, 0, COUNT(bad_cases));
    tcase_add_loop_test(memory, impossible_header_sizes_are_refused, 0, COUNT(prefix_cases));
    tcase_add_test(memory, a_file_cut_anywhere_is_refused);
    tcase_add_test(memory, a_header_with_one_wrong_byte_is_refused_or_consistent);
    tcase_add_test(memory, a_long_name_is_cut_in_messages_between_characters);
    suite_add_tcase(suite, memory);

    tcase_set_timeout(files, 60);
    tcase_add_checked_fixture(files, folder_make, folder_remove);
    tcase_add_test(files, what_the_system_refuses_is_an_io_error);
    tcase_add_test(files, a_pipe_is_read_whole_and_a_stream_of_zeros_is_refused_early);
    tcase_add_test(files, dropped_pages_come_back_from_the_file);
    tcase_add_test(files, a_directory_opens_shard_by_shard);
    tcase_add_loop_test(files, an_index_that_lies_is_refused, 0, COUNT(index_cases));
    tcase_add_test(files, a_name_in_two_shards_is_refused);
    tcase_add_test(files, a_pipe_in_place_of_a_shard_does_not_hang);
    suite_add_tcase(suite, files);
    return suite;
}

static Suite *writer_suite(void)
{
    Suite *suite = suite_create("safetensors writer");
    TCase *files = tcase_create("files");

    tcase_set_timeout(files, 60);
    tcase_add_checked_fixture(files, folder_make, folder_remove);
    tcase_add_test(files, a_copy_differs_only_where_it_was_changed);
    tcase_add_test(files, a_replaced_file_passes_on_its_permissions_and_a_link_its_target);
    tcase_add_test(files, a_directory_is_copied_with_its_index);
    tcase_add_test(files, a_directory_without_index_is_a_set_of_one);
    tcase_add_loop_test(files, an_output_that_cannot_be_is_refused_and_nothing_changes, 0,
                        COUNT(output_cases));
    tcase_add_test(files, a_directory_is_not_written_over_itself_or_into_a_file);
    tcase_add_test(files, closing_without_commit_leaves_nothing);
    tcase_add_test(files, a_failed_rename_takes_new_files_back_and_tells_of_replaced_ones);
    tcase_add_test(files, a_disk_that_is_full_at_the_start_is_noticed_at_the_start);
    tcase_add_test(files, a_disk_that_fills_up_on_the_way_leaves_nothing);
    tcase_add_loop_test(files, large_tensors_arrive_whole_on_any_file_system, 0,
                        COUNT(large_cases));
    tcase_add_test(files, a_large_tensor_that_does_not_fit_is_an_error);
    tcase_add_test(files, standard_output_gets_the_entries_in_order);
    tcase_add_test(files, standard_output_that_is_the_input_is_refused);
    tcase_add_test(files, a_device_is_written_to_and_never_replaced);
    tcase_add_test(files, a_reader_that_left_is_an_error);
    tcase_add_test(files, what_was_saved_is_read_back);
    tcase_add_loop_test(files, what_cannot_be_read_back_is_not_saved, 0, COUNT(save_cases));
    tcase_add_loop_test(files, every_allocation_may_fail_and_leaves_nothing, 0,
                        COUNT(allocation_cases));
    suite_add_tcase(suite, files);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(reader_suite());
    int failed;

    srunner_add_suite(runner, writer_suite());
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
