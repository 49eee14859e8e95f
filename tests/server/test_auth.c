/* Who may do what: without credentials, with tokens, with certificates; which files are refused. */
#include "auth.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_BYTES 4096
#define REINIT     "fire.v1.ReinitService/Reinit"
#define STATUS     "fire.v1.AdminService/Status"
#define DRAIN      "fire.v1.AdminService/Drain"

static const char trainer_token[] = "0123456789abcdef0123456789abcdef";
static const char admin_token[] = "fedcba9876543210fedcba9876543210";

static struct auth *parse(const char *text)
{
    struct fire_error error = { 0 };
    struct auth *auth;

    ck_assert_msg(auth_parse(text, strlen(text), &auth, &error) == FIRE_OK, "%s", error.message);
    return auth;
}

/* Two tokens and a certificate, with fresh hashes. */
static void write_credentials(char text[TEXT_BYTES])
{
    char trainer[AUTH_HASH_BYTES], admin[AUTH_HASH_BYTES];
    struct fire_error error = { 0 };

    ck_assert_int_eq(
        auth_hash_token(trainer_token, strlen(trainer_token), trainer, sizeof(trainer), &error),
        FIRE_OK);
    ck_assert_int_eq(
        auth_hash_token(admin_token, strlen(admin_token), admin, sizeof(admin), &error), FIRE_OK);
    snprintf(text, TEXT_BYTES,
             "tokens:\n"
             "  - { name: t, tenant: research, hash: \"%s\",\n"
             "      allow: [\"fire.v1.ReinitService/*\", " STATUS ", http/metrics] }\n"
             "  - { name: a, tenant: ops, hash: \"%s\", allow: [\"*\"] }\n"
             "certificates:\n"
             "  - { subject: trainer, tenant: fleet, allow: [" REINIT "] }\n",
             trainer, admin);
}

static struct auth *with_credentials(void)
{
    char text[TEXT_BYTES];

    write_credentials(text);
    return parse(text);
}

START_TEST(without_credentials_this_machine_may_do_everything)
{
    struct auth_caller caller = { .local = true };
    struct fire_error error = { 0 };
    char tenant[TENANT_NAME_BYTES];
    struct auth *auth;

    ck_assert_int_eq(auth_open("", &auth, &error), FIRE_OK);
    ck_assert(!auth_has_credentials(auth));
    ck_assert_int_eq(auth_check(auth, &caller, DRAIN, tenant, &error), FIRE_OK);
    ck_assert_str_eq(tenant, "local");
    caller.claimed_tenant = "team-1.x_Y";
    ck_assert_int_eq(auth_check(auth, &caller, REINIT, tenant, &error), FIRE_OK);
    ck_assert_str_eq(tenant, "team-1.x_Y");
    caller.claimed_tenant = "no blanks";
    ck_assert_int_eq(auth_check(auth, &caller, REINIT, tenant, &error), FIRE_BAD_REQUEST);
    ck_assert_str_eq(tenant, "");
    caller.claimed_tenant = "";
    ck_assert_int_eq(auth_check(auth, &caller, REINIT, tenant, &error), FIRE_BAD_REQUEST);
    caller = (struct auth_caller){ .claimed_tenant = "x" };
    ck_assert_int_eq(auth_check(auth, &caller, REINIT, tenant, &error), FIRE_UNAUTHENTICATED);
    ck_assert_int_eq(auth_check(auth, &caller, "grpc.health.v1.Health/Check", tenant, &error),
                     FIRE_UNAUTHENTICATED);
    auth_close(auth);
}
END_TEST

static const char *const trainer_name[] = { "other", "trainer" };
static const char *const stranger_name[] = { "Trainer", "trainer.example", "" };

static const struct {
    const char *what;
    const char *token;
    const char *const *names;
    size_t name_count;
    const char *method;
    enum fire_status status;
    const char *tenant;
} cases[] = {
    { "a service's star", trainer_token, NULL, 0, REINIT, FIRE_OK, "research" },
    { "the whole service", trainer_token, NULL, 0, "fire.v1.ReinitService/AnalyzeStream", FIRE_OK,
      "research" },
    { "a whole method", trainer_token, NULL, 0, STATUS, FIRE_OK, "research" },
    { "a page", trainer_token, NULL, 0, "http/metrics", FIRE_OK, "research" },
    { "no rule", trainer_token, NULL, 0, DRAIN, FIRE_DENIED, "" },
    { "no rule, longer", trainer_token, NULL, 0, STATUS "x", FIRE_DENIED, "" },
    { "no rule, a service alike", trainer_token, NULL, 0, "fire.v1.ReinitServiceX/Reinit",
      FIRE_DENIED, "" },
    { "star", admin_token, NULL, 0, DRAIN, FIRE_OK, "ops" },
    { "star for reflection", admin_token, NULL, 0,
      "grpc.reflection.v1.ServerReflection/ServerReflectionInfo", FIRE_OK, "ops" },
    { "wrong token", "0123456789abcdef0123456789abcdee", NULL, 0, REINIT, FIRE_UNAUTHENTICATED,
      "" },
    { "part of a token", "0123456789abcdef", NULL, 0, REINIT, FIRE_UNAUTHENTICATED, "" },
    { "longer than a token", "0123456789abcdef0123456789abcdef0", NULL, 0, REINIT,
      FIRE_UNAUTHENTICATED, "" },
    { "empty token", "", NULL, 0, REINIT, FIRE_UNAUTHENTICATED, "" },
    { "nothing", NULL, NULL, 0, REINIT, FIRE_UNAUTHENTICATED, "" },
    { "certificate", NULL, trainer_name, 2, REINIT, FIRE_OK, "fleet" },
    { "certificate without a rule", NULL, trainer_name, 2, STATUS, FIRE_DENIED, "" },
    { "unknown certificate", NULL, stranger_name, 3, REINIT, FIRE_UNAUTHENTICATED, "" },
    { "the token decides", admin_token, trainer_name, 2, DRAIN, FIRE_OK, "ops" },
    { "a wrong token is not saved by a certificate", "0123456789abcdefxxxxxxxxxxxxxxxx",
      trainer_name, 2, REINIT, FIRE_UNAUTHENTICATED, "" },
    { "health is open", NULL, NULL, 0, "grpc.health.v1.Health/Check", FIRE_OK, "anonymous" },
    { "healthz is open", "wrong", NULL, 0, "http/healthz", FIRE_OK, "anonymous" },
    { "readyz is open", trainer_token, NULL, 0, "http/readyz", FIRE_OK, "research" },
    { "watching health is not", NULL, NULL, 0, "grpc.health.v1.Health/Watch", FIRE_UNAUTHENTICATED,
      "" },
};

/* A caller of this machine has no more rights, and what it claims to be is ignored. */
START_TEST(with_credentials_only_rules_count)
{
    struct auth *auth = with_credentials();

    for (int local = 0; local < 2; local++) {
        struct fire_error error = { 0 };
        char tenant[TENANT_NAME_BYTES];
        const struct auth_caller caller = {
            .token = cases[_i].token,
            .token_bytes = cases[_i].token ? strlen(cases[_i].token) : 0,
            .names = cases[_i].names,
            .name_count = cases[_i].name_count,
            .claimed_tenant = "ops",
            .local = local == 1,
        };
        const enum fire_status status = auth_check(auth, &caller, cases[_i].method, tenant, &error);

        ck_assert_msg(status == cases[_i].status, "%s: %s", cases[_i].what,
                      fire_status_name(status));
        ck_assert_str_eq(tenant, cases[_i].tenant);
        ck_assert_int_eq(error.message[0] != '\0', status != FIRE_OK);
        if (cases[_i].token && strlen(cases[_i].token) > 5)
            ck_assert_ptr_null(strstr(error.message, cases[_i].token));
    }
    auth_close(auth);
}
END_TEST

START_TEST(an_empty_file_denies_everything)
{
    static const char *const texts[] = { "", "# nothing\n", "tokens: []\n" };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const struct auth_caller caller = { .local = true };
        struct auth *auth = parse(texts[i]);
        struct fire_error error = { 0 };
        char tenant[TENANT_NAME_BYTES];

        ck_assert(auth_has_credentials(auth));
        ck_assert_int_eq(auth_check(auth, &caller, REINIT, tenant, &error), FIRE_UNAUTHENTICATED);
        auth_close(auth);
    }
}
END_TEST

#define HASH                                                                                       \
    "sha256:00112233445566778899aabbccddeeff:"                                                     \
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define TOKEN(name, tenant, hash, allow)                                                           \
    "  - { name: " name ", tenant: " tenant ", hash: \"" hash "\", allow: [" allow "] }\n"

static const struct {
    const char *text, *words;
} refused[] = {
    { "tokens:\n" TOKEN("a", "x", HASH, "fire.v1.ReinitService/Reint"),
      "did you mean fire.v1.ReinitService/Reinit" },
    { "tokens:\n" TOKEN("a", "x", HASH, "http/metrcs"), "did you mean http/metrics" },
    { "tokens:\n" TOKEN("a", "x", HASH, "\"fire.v1.AdminServce/*\""),
      "did you mean fire.v1.AdminService/*" },
    { "tokens:\n" TOKEN("a", "x", HASH, "\"**\""), "no method \"**\"" },
    { "tokens:\n" TOKEN("a", "x", HASH, ""), "allow" },
    { "tokens:\n" TOKEN("a", "\"x y\"", HASH, "\"*\""), "tenant \"x y\" must be" },
    { "tokens:\n" TOKEN("a", "\"x\n\n  y\"", HASH, "\"*\""),
      "tenant \"x?y\" must be" }, /* by fuzzing */
    { "tokens:\n" TOKEN("a", "x", "plain-token", "\"*\""), "as fired --hash-token prints it" },
    { "tokens:\n" TOKEN("a", "x", "md5:00:00", "\"*\""), "as fired --hash-token prints it" },
    { "tokens:\n" TOKEN("a", "x",
                        "sha256:00112233445566778899aabbccddeefg:"
                        "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
                        "\"*\""),
      "as fired --hash-token prints it" },
    { "tokens:\n" TOKEN("a", "x", HASH, "\"*\"") TOKEN("a", "y", HASH, "\"*\""), "listed twice" },
    { "tokens:\n  - { name: a, tenant: x, allow: [\"*\"] }\n", "hash" },
    { "tokns: []\n", "did you mean tokens" },
    { "certificates:\n  - { subject: a, tenant: x, allow: [nothing] }\n", "no method" },
    { "certificates:\n  - { subject: a, tenant: x, allow: [\"*\"] }\n"
      "  - { subject: a, tenant: y, allow: [\"*\"] }\n",
      "listed twice" },
    { "certificates:\n  - { subjct: a, tenant: x, allow: [\"*\"] }\n", "did you mean subject" },
};

START_TEST(mistakes_in_credentials_are_named)
{
    struct fire_error error = { 0 };
    struct auth *auth;

    ck_assert_int_eq(auth_parse(refused[_i].text, strlen(refused[_i].text), &auth, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_ptr_null(auth);
    ck_assert_msg(strstr(error.message, refused[_i].words) != NULL, "\"%s\" is not in: %s",
                  refused[_i].words, error.message);
}
END_TEST

static const struct {
    mode_t mode;
    enum fire_status status;
} modes[] = {
    { 0600, FIRE_OK },     { 0400, FIRE_OK },     { 0640, FIRE_OK },     { 0644, FIRE_DENIED },
    { 0604, FIRE_DENIED }, { 0620, FIRE_DENIED }, { 0602, FIRE_DENIED },
};

START_TEST(a_file_others_can_read_is_refused)
{
    char path[] = "test_auth_XXXXXX";
    struct fire_error error = { 0 };
    char text[TEXT_BYTES];
    struct auth *auth;
    int file;

    write_credentials(text);
    file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(write(file, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(fchmod(file, modes[_i].mode), 0);
    close(file);
    ck_assert_int_eq(auth_open(path, &auth, &error), modes[_i].status);
    if (modes[_i].status == FIRE_OK)
        ck_assert(auth_has_credentials(auth));
    else
        ck_assert_ptr_nonnull(strstr(error.message, "chmod 600"));
    auth_close(auth);
    unlink(path);
    ck_assert_int_eq(auth_open(path, &auth, &error), FIRE_NOT_FOUND);
    ck_assert_ptr_null(auth);
}
END_TEST

/* The known digest: SHA-256 of sixteen zero bytes and the token, by another program
 * (printf '\0…' | cat - token | sha256sum). */
START_TEST(the_hash_is_sha256_of_salt_and_token)
{
    static const char text[] =
        "tokens:\n" TOKEN("a", "x",
                          "sha256:00000000000000000000000000000000:"
                          "71c789f6d75c07e6315772299f3ef92b3be2dac5cc99f2cb8092156024d283c0",
                          "\"*\"");
    const struct auth_caller caller = { .token = trainer_token,
                                        .token_bytes = strlen(trainer_token) };
    struct auth *auth = parse(text);
    struct fire_error error = { 0 };
    char tenant[TENANT_NAME_BYTES];

    ck_assert_int_eq(auth_check(auth, &caller, DRAIN, tenant, &error), FIRE_OK);
    ck_assert_str_eq(tenant, "x");
    auth_close(auth);
}
END_TEST

START_TEST(hashes_are_salted_and_weak_tokens_refused)
{
    char first[AUTH_HASH_BYTES], second[AUTH_HASH_BYTES], longest[4097];
    struct fire_error error = { 0 };

    memset(longest, 'x', sizeof(longest));
    ck_assert_int_eq(auth_hash_token(trainer_token, 32, first, sizeof(first), &error), FIRE_OK);
    ck_assert_int_eq(auth_hash_token(trainer_token, 32, second, sizeof(second), &error), FIRE_OK);
    ck_assert_str_ne(first, second);
    ck_assert_uint_eq(strlen(first), 7 + 32 + 1 + 64);
    ck_assert_int_eq(auth_hash_token("short", 5, first, sizeof(first), &error), FIRE_BAD_REQUEST);
    ck_assert_int_eq(auth_hash_token("", 0, first, sizeof(first), &error), FIRE_BAD_REQUEST);
    ck_assert_int_eq(auth_hash_token("with blanks in the middle", 25, first, sizeof(first), &error),
                     FIRE_BAD_REQUEST);
    ck_assert_int_eq(auth_hash_token(longest, 513, first, sizeof(first), &error), FIRE_BAD_REQUEST);
    ck_assert_int_eq(auth_hash_token(longest, 512, first, sizeof(first), &error), FIRE_OK);
}
END_TEST

START_TEST(tenants_have_plain_names)
{
    char longest[TENANT_NAME_BYTES + 1];

    memset(longest, 'a', TENANT_NAME_BYTES);
    longest[TENANT_NAME_BYTES] = '\0';
    ck_assert(!auth_tenant_is_valid(longest));
    longest[TENANT_NAME_BYTES - 1] = '\0';
    ck_assert(auth_tenant_is_valid(longest));
    ck_assert(auth_tenant_is_valid("A.b_c-9"));
    ck_assert(!auth_tenant_is_valid(""));
    ck_assert(!auth_tenant_is_valid("a/b"));
    ck_assert(!auth_tenant_is_valid("\xc3\xa9"));
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

int main(void)
{
    Suite *suite = suite_create("auth");
    TCase *tests = tcase_create("check");
    SRunner *runner;
    int failed;

    tcase_add_test(tests, without_credentials_this_machine_may_do_everything);
    tcase_add_loop_test(tests, with_credentials_only_rules_count, 0, COUNT(cases));
    tcase_add_test(tests, an_empty_file_denies_everything);
    tcase_add_loop_test(tests, mistakes_in_credentials_are_named, 0, COUNT(refused));
    tcase_add_loop_test(tests, a_file_others_can_read_is_refused, 0, COUNT(modes));
    tcase_add_test(tests, the_hash_is_sha256_of_salt_and_token);
    tcase_add_test(tests, hashes_are_salted_and_weak_tokens_refused);
    tcase_add_test(tests, tenants_have_plain_names);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
