/* tenant: names, limits and the most there may be. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "tenant.h"

static const struct tenant_limits defaults = { .weight = 1,
                                               .bytes_in_flight_max = 1000,
                                               .streams_max = 4,
                                               .calls_max = 8,
                                               .device_share_max = 1 };

static struct tenants *open_tenants(void)
{
    struct tenants *tenants;

    ck_assert_int_eq(tenants_open(&defaults, &tenants), FIRE_OK);
    return tenants;
}

static struct tenant *find(struct tenants *tenants, const char *name)
{
    struct fire_error error = { 0 };
    struct tenant *tenant;

    ck_assert_msg(tenants_find(tenants, name, &tenant, &error) == FIRE_OK, "%s", error.message);
    return tenant;
}

START_TEST(a_name_is_one_tenant)
{
    struct tenants *tenants = open_tenants();
    struct tenant *first = find(tenants, "trainer-1.a_B");

    ck_assert_str_eq(first->name, "trainer-1.a_B");
    ck_assert_double_eq(first->limits.weight, 1);
    ck_assert_ptr_eq(find(tenants, "trainer-1.a_B"), first);
    ck_assert_ptr_ne(find(tenants, "trainer-1.a_b"), first);
    ck_assert_uint_eq(tenants_count(tenants), 2);
    ck_assert_ptr_eq(tenants_at(tenants, 0), first);
    ck_assert_ptr_null(tenants_at(tenants, 2));
    tenants_close(tenants);
    tenants_close(NULL);
}
END_TEST

/* 63 bytes are the most. */
#define LONGEST "123456789012345678901234567890123456789012345678901234567890123"
static const struct {
    const char *name;
    enum fire_status status;
} names[] = {
    { "a", FIRE_OK },
    { LONGEST, FIRE_OK },
    { LONGEST "4", FIRE_BAD_REQUEST },
    { "", FIRE_BAD_REQUEST },
    { "two words", FIRE_BAD_REQUEST },
    { "quote\"", FIRE_BAD_REQUEST },
    { "line\n", FIRE_BAD_REQUEST },
    { "caf\xc3\xa9", FIRE_BAD_REQUEST },
};

START_TEST(names_are_checked)
{
    struct tenants *tenants = open_tenants();
    struct fire_error error = { 0 };
    struct tenant *tenant;

    ck_assert_int_eq(tenants_find(tenants, names[_i].name, &tenant, &error), names[_i].status);
    ck_assert_int_eq(tenant != NULL, names[_i].status == FIRE_OK);
    if (!tenant)
        ck_assert_str_eq(error.field, "tenant");
    tenants_close(tenants);
}
END_TEST

/* Limits by name hold before the tenant appears; new defaults are for everyone, so that a tenant
 * that left the settings file has no limits of its own any more. */
START_TEST(new_defaults_are_for_everyone)
{
    struct tenants *tenants = open_tenants();
    struct tenant_limits own = defaults, fresh = defaults;
    struct fire_error error = { 0 };
    struct tenant *other = find(tenants, "other");

    own.weight = 3;
    fresh.weight = 2;
    ck_assert_int_eq(tenants_set_limits(tenants, "heavy", &own, &error), FIRE_OK);
    ck_assert_int_eq(tenants_set_limits(tenants, "no good", &own, &error), FIRE_BAD_REQUEST);
    ck_assert_double_eq(find(tenants, "heavy")->limits.weight, 3);
    tenants_set_defaults(tenants, &fresh);
    ck_assert_double_eq(find(tenants, "heavy")->limits.weight, 2);
    ck_assert_double_eq(other->limits.weight, 2);
    ck_assert_double_eq(find(tenants, "new")->limits.weight, 2);
    tenants_close(tenants);
}
END_TEST

/* Nobody grows the daemon by inventing names; known ones go on. */
START_TEST(the_table_has_a_most)
{
    struct tenants *tenants = open_tenants();
    struct fire_error error = { 0 };
    struct tenant *first = find(tenants, "tenant-0");
    struct tenant *tenant;
    char name[32];

    for (uint32_t i = 1; i < TENANTS_MAX; i++) {
        snprintf(name, sizeof(name), "tenant-%u", i);
        find(tenants, name);
    }
    ck_assert_int_eq(tenants_find(tenants, "one-more", &tenant, &error), FIRE_BUSY);
    ck_assert_ptr_null(tenant);
    ck_assert_ptr_eq(find(tenants, "tenant-0"), first);
    ck_assert_uint_eq(tenants_count(tenants), TENANTS_MAX);
    tenants_close(tenants);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tenant");
    TCase *tests = tcase_create("tenant");
    SRunner *runner;
    int failed;

    tcase_add_test(tests, a_name_is_one_tenant);
    tcase_add_loop_test(tests, names_are_checked, 0, sizeof(names) / sizeof(names[0]));
    tcase_add_test(tests, new_defaults_are_for_everyone);
    tcase_add_test(tests, the_table_has_a_most);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
