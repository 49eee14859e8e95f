/* Alerts: what a rule says of points and of time passing, what stays over a reload, how settings
 * become rules; and the webhook against a receiver of the test's own. */
#include <arpa/inet.h>
#include <check.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alerts.h"
#include "config_alerts.h"
#include "webhook.h"

#define CHANGES_MAX 64
#define WAIT_MS     60000

/* What the engine told. */
static struct {
    char text[CHANGES_MAX][128]; /* "rule run layer state" */
    double values[CHANGES_MAX];
    size_t count;
} told;

static void on_changed(void *data, const struct alert_change *change)
{
    (void)data;
    ck_assert_uint_lt(told.count, CHANGES_MAX);
    snprintf(told.text[told.count], sizeof(told.text[0]), "%s %s %s %s", change->rule->name,
             change->run, change->layer, alert_state_name(change->state));
    told.values[told.count++] = change->value;
}

static struct alerts *open_with(const struct alert_rule *rules, size_t count)
{
    struct alerts *alerts;

    told.count = 0;
    ck_assert_int_eq(alerts_open(on_changed, NULL, &alerts), FIRE_OK);
    ck_assert_int_eq(alerts_set_rules(alerts, rules, count, 0), FIRE_OK);
    return alerts;
}

static const struct alert_rule high = { .name = "high",
                                        .run = "*",
                                        .layer = "fc*",
                                        .statistic = "dormant_ratio",
                                        .kind = ALERT_THRESHOLD,
                                        .value = 0.3,
                                        .hold_s = 10.0 };

/* Pending at once, firing when it has held for ten seconds (by a point or by time), ok at once. */
START_TEST(a_threshold_holds_before_it_fires)
{
    struct alerts *alerts = open_with(&high, 1);

    alerts_point(alerts, "t", "r", "fc1", "dormant_ratio", 1, 0.2, 0);
    ck_assert_uint_eq(told.count, 0);
    alerts_point(alerts, "t", "r", "fc1", "dormant_ratio", 2, 0.4, 1000);
    ck_assert_uint_eq(told.count, 1);
    ck_assert_str_eq(told.text[0], "high r fc1 pending");
    alerts_tick(alerts, 10999);
    ck_assert_uint_eq(told.count, 1);
    alerts_tick(alerts, 11000);
    ck_assert_uint_eq(told.count, 2);
    ck_assert_str_eq(told.text[1], "high r fc1 firing");
    ck_assert_double_eq(told.values[1], 0.4);
    ck_assert_uint_eq(alerts_firing(alerts, 0), 1);
    alerts_point(alerts, "t", "r", "fc1", "dormant_ratio", 3, 0.5, 12000);
    ck_assert_uint_eq(told.count, 2);
    alerts_point(alerts, "t", "r", "fc1", "dormant_ratio", 4, 0.3, 13000);
    ck_assert_str_eq(told.text[2], "high r fc1 ok");
    ck_assert_uint_eq(alerts_firing(alerts, 0), 0);
    /* A pending one that ends says so, and the hold time starts anew. */
    alerts_point(alerts, "t", "r", "fc1", "dormant_ratio", 5, 0.9, 20000);
    alerts_point(alerts, "t", "r", "fc1", "dormant_ratio", 6, 0.1, 29000);
    alerts_point(alerts, "t", "r", "fc1", "dormant_ratio", 7, 0.9, 31000);
    alerts_tick(alerts, 40999);
    ck_assert_uint_eq(told.count, 6);
    ck_assert_str_eq(told.text[5], "high r fc1 pending");
    alerts_close(alerts);
}
END_TEST

/* Runs, layers, tenants and statistics are told apart; the whole run is no layer. */
START_TEST(series_are_told_apart)
{
    struct alert_rule rules[3] = { high, high, high };
    struct alerts *alerts;

    rules[0].hold_s = rules[1].hold_s = rules[2].hold_s = 0.0;
    snprintf(rules[1].name, sizeof(rules[1].name), "loss");
    snprintf(rules[1].statistic, sizeof(rules[1].statistic), "loss");
    rules[1].layer[0] = '\0';
    snprintf(rules[2].name, sizeof(rules[2].name), "run-two");
    snprintf(rules[2].run, sizeof(rules[2].run), "two*");
    alerts = open_with(rules, 3);
    alerts_point(alerts, "t", "one", "head", "dormant_ratio", 1, 0.9, 0);
    alerts_point(alerts, "t", "one", "fc1", "dfi", 1, 0.9, 0);
    alerts_point(alerts, "t", "one", "fc1", "loss", 1, 0.9, 0);
    ck_assert_uint_eq(told.count, 0);
    alerts_point(alerts, "t", "one", "", "loss", 1, 0.9, 0);
    ck_assert_uint_eq(told.count, 2);
    ck_assert_str_eq(told.text[1], "loss one  firing");
    alerts_point(alerts, "t", "two-b", "fc1", "dormant_ratio", 1, 0.9, 0);
    ck_assert_uint_eq(told.count, 6);
    ck_assert_str_eq(told.text[5], "run-two two-b fc1 firing");
    alerts_point(alerts, "other", "two-b", "fc1", "dormant_ratio", 1, 0.1, 0);
    ck_assert_uint_eq(told.count, 6);
    ck_assert_uint_eq(alerts_firing(alerts, 0), 1);
    alerts_close(alerts);
}
END_TEST

/* Least squares over the window only: an old jump outside it does not count. */
START_TEST(a_slope_looks_at_its_window)
{
    const struct alert_rule rule = { .name = "falls",
                                     .run = "*",
                                     .layer = "*",
                                     .statistic = "loss",
                                     .kind = ALERT_SLOPE,
                                     .below = true,
                                     .value = -0.5,
                                     .window = 10.0 };
    struct alerts *alerts = open_with(&rule, 1);
    int64_t step = 0;

    alerts_point(alerts, "t", "r", "l", "loss", step++, 100.0, 0);
    alerts_point(alerts, "t", "r", "l", "loss", step++, 50.0, 0);
    ck_assert_uint_eq(told.count, 0); /* two points are no slope */
    alerts_point(alerts, "t", "r", "l", "loss", step++, 10.0, 0);
    ck_assert_str_eq(told.text[1], "falls r l firing");
    ck_assert_double_eq_tol(told.values[1], -45.0, 1e-9);
    for (int i = 0; i < 30; i++)
        alerts_point(alerts, "t", "r", "l", "loss", step++, 10.0, 0);
    ck_assert_uint_eq(told.count, 3);
    ck_assert_str_eq(told.text[2], "falls r l ok");
    /* A run that goes back in steps starts its window anew. */
    alerts_point(alerts, "t", "r", "l", "loss", 2, 5.0, 0);
    alerts_point(alerts, "t", "r", "l", "loss", 3, 4.0, 0);
    alerts_point(alerts, "t", "r", "l", "loss", 4, 3.0, 0);
    ck_assert_str_eq(told.text[4], "falls r l firing");
    ck_assert_double_eq_tol(told.values[4], -1.0, 1e-9);
    alerts_close(alerts);
}
END_TEST

START_TEST(silence_is_noticed)
{
    const struct alert_rule rule = { .name = "silent",
                                     .run = "*",
                                     .layer = "",
                                     .statistic = "loss",
                                     .kind = ALERT_NO_DATA,
                                     .window = 60.0,
                                     .hold_s = 5.0 };
    struct alerts *alerts = open_with(&rule, 1);

    alerts_tick(alerts, 1000000);
    ck_assert_uint_eq(told.count, 0); /* nobody has spoken yet */
    alerts_point(alerts, "t", "r", "", "loss", 1, 1.0, 1000000);
    alerts_tick(alerts, 1059999);
    ck_assert_uint_eq(told.count, 0);
    alerts_tick(alerts, 1060000);
    ck_assert_str_eq(told.text[0], "silent r  pending");
    alerts_tick(alerts, 1065000);
    ck_assert_str_eq(told.text[1], "silent r  firing");
    ck_assert_double_eq(told.values[1], 65.0);
    alerts_point(alerts, "t", "r", "", "loss", 2, 1.0, 1066000);
    ck_assert_str_eq(told.text[2], "silent r  ok");
    alerts_close(alerts);
}
END_TEST

/* A rule that stays keeps firing without another word, wherever it now stands; one that is gone or
 * changed says ok. */
START_TEST(a_reload_keeps_what_stays)
{
    struct alert_rule rules[2] = { high, high };
    struct alert_rule fresh[2];
    struct alerts *alerts;

    rules[0].hold_s = rules[1].hold_s = 0.0;
    snprintf(rules[1].name, sizeof(rules[1].name), "other");
    alerts = open_with(rules, 2);
    alerts_point(alerts, "t", "r", "fc1", "dormant_ratio", 1, 0.9, 0);
    ck_assert_uint_eq(told.count, 4);
    fresh[0] = rules[0];
    fresh[0].value = 0.95;
    fresh[1] = rules[1];
    ck_assert_int_eq(alerts_set_rules(alerts, fresh, 2, 1), FIRE_OK);
    ck_assert_uint_eq(told.count, 5);
    ck_assert_str_eq(told.text[4], "high r fc1 ok");
    ck_assert_uint_eq(alerts_firing(alerts, 0), 0);
    ck_assert_uint_eq(alerts_firing(alerts, 1), 1);
    ck_assert_uint_eq(alerts_series(alerts), 1);
    fresh[0] = rules[1];
    ck_assert_int_eq(alerts_set_rules(alerts, fresh, 1, 2), FIRE_OK);
    ck_assert_uint_eq(alerts_firing(alerts, 0), 1);
    alerts_point(alerts, "t", "r", "fc1", "dormant_ratio", 2, 0.1, 3);
    ck_assert_str_eq(told.text[5], "other r fc1 ok");
    alerts_close(alerts);
}
END_TEST

/* What fired before a restart fires on, quietly, until a point ends it: also with a hold time; a
 * slope needs as many points as ever. What no rule speaks of is not taken. */
START_TEST(what_fired_before_a_restart_fires_on)
{
    struct alert_rule rules[3] = { high, high, high };
    struct alerts *alerts;

    snprintf(rules[1].name, sizeof(rules[1].name), "rises");
    snprintf(rules[1].statistic, sizeof(rules[1].statistic), "loss");
    rules[1].layer[0] = '\0';
    rules[1].kind = ALERT_SLOPE;
    rules[1].window = 100.0;
    rules[1].hold_s = 0.0;
    rules[2] = rules[1];
    snprintf(rules[2].name, sizeof(rules[2].name), "gone");
    rules[2].kind = ALERT_NO_DATA;
    rules[2].window = 5.0;
    alerts = open_with(rules, 3);
    ck_assert(alerts_restore(alerts, "high", "t", "r", "fc1", 1000));
    ck_assert(alerts_restore(alerts, "rises", "t", "r", "", 1000));
    ck_assert(alerts_restore(alerts, "gone", "t", "r", "", 1000));
    ck_assert(!alerts_restore(alerts, "no such", "t", "r", "fc1", 1000));
    ck_assert(!alerts_restore(alerts, "high", "t", "r", "head", 1000));
    alerts_tick(alerts, 2000);
    alerts_tick(alerts, 60000);
    alerts_point(alerts, "t", "r", "fc1", "dormant_ratio", 7, 0.4, 61000);
    ck_assert_uint_eq(told.count, 0);
    ck_assert_uint_eq(alerts_firing(alerts, 0), 1);
    ck_assert_uint_eq(alerts_firing(alerts, 1), 1);
    ck_assert_uint_eq(alerts_firing(alerts, 2), 1);
    alerts_point(alerts, "t", "r", "fc1", "dormant_ratio", 8, 0.1, 62000);
    ck_assert_uint_eq(told.count, 1);
    ck_assert_str_eq(told.text[0], "high r fc1 ok");
    alerts_point(alerts, "t", "r", "", "loss", 1, 1.0, 62000); /* ends the silence */
    ck_assert_uint_eq(told.count, 2);
    ck_assert_str_eq(told.text[1], "gone r  ok");
    alerts_point(alerts, "t", "r", "", "loss", 2, 1.0, 62000);
    ck_assert_uint_eq(told.count, 2);
    alerts_point(alerts, "t", "r", "", "loss", 3, 1.0, 62000);
    ck_assert_uint_eq(told.count, 3);
    ck_assert_str_eq(told.text[2], "rises r  ok");
    ck_assert_uint_eq(alerts_firing(alerts, 1), 0);
    alerts_close(alerts);
}
END_TEST

/* A series that had points before a restart falls silent like any other, from the start on. */
START_TEST(what_is_expected_may_fall_silent)
{
    struct alert_rule rules[2] = { high, high };
    struct alerts *alerts;

    snprintf(rules[1].name, sizeof(rules[1].name), "gone");
    rules[1].kind = ALERT_NO_DATA;
    rules[1].window = 5.0;
    rules[1].hold_s = 0.0;
    alerts = open_with(rules, 2);
    ck_assert(alerts_restore(alerts, "gone", "t", "r", "fc1", 1000));
    alerts_expect(alerts, "gone", "t", "r", "fc1", 1000); /* known already: it fires on */
    alerts_expect(alerts, "gone", "t", "r", "fc2", 1000);
    alerts_expect(alerts, "gone", "t", "r", "fc3", 1000);
    alerts_expect(alerts, "gone", "t", "r", "head", 1000); /* the rule does not speak of it */
    alerts_expect(alerts, "high", "t", "r", "fc2", 1000);  /* no rule of silence */
    alerts_expect(alerts, "no such", "t", "r", "fc2", 1000);
    ck_assert_uint_eq(alerts_series(alerts), 3);
    alerts_point(alerts, "t", "r", "fc3", "dormant_ratio", 1, 0.0, 4000);
    alerts_tick(alerts, 5999);
    ck_assert_uint_eq(told.count, 0);
    alerts_tick(alerts, 6000);
    ck_assert_uint_eq(told.count, 2);
    ck_assert_str_eq(told.text[1], "gone r fc2 firing");
    ck_assert_uint_eq(alerts_firing(alerts, 1), 2);
    alerts_tick(alerts, 9000);
    ck_assert_str_eq(told.text[3], "gone r fc3 firing");
    alerts_point(alerts, "t", "r", "fc2", "dormant_ratio", 1, 0.0, 9000);
    ck_assert_str_eq(told.text[4], "gone r fc2 ok");
    alerts_close(alerts);
}
END_TEST

START_TEST(states_are_bounded)
{
    struct alert_rule rule = high;
    struct alerts *alerts;
    char run[32];

    rule.value = 2.0;
    alerts = open_with(&rule, 1);
    for (uint32_t i = 0; i < ALERTS_SERIES_MAX + 10; i++) {
        snprintf(run, sizeof(run), "run-%u", i);
        alerts_point(alerts, "t", run, "fc1", "dormant_ratio", 1, 0.9, 0);
    }
    ck_assert_uint_eq(alerts_series(alerts), ALERTS_SERIES_MAX);
    ck_assert_uint_eq(alerts_left_out(alerts), 10);
    alerts_close(alerts);
}
END_TEST

/* --- settings --------------------------------------------------------------------------------- */

#define T(text) ((char *)(text))
static const struct {
    struct config_alert_text text;
    const char *wrong; /* NULL: it is fine; else part of the message */
} alert_cases[] = {
    { { T("a"), NULL, NULL, T("dfi"), NULL, NULL, T("3"), NULL, NULL }, NULL },
    { { T("a"), T("r*"), T(""), T("loss"), T("slope"), T("<"), T("-1e-3"), T("100"), T("60") },
      NULL },
    { { T("a"), NULL, NULL, T("loss"), T("no_data"), NULL, NULL, T("60"), NULL }, NULL },
    { { T(""), NULL, NULL, T("dfi"), NULL, NULL, T("3"), NULL, NULL }, "name" },
    { { T("a b"), NULL, NULL, T("dfi"), NULL, NULL, T("3"), NULL, NULL }, "name" },
    { { T("a"), NULL, NULL, NULL, NULL, NULL, T("3"), NULL, NULL }, "statistic" },
    { { T("a"), NULL, NULL, T("DfI"), NULL, NULL, T("3"), NULL, NULL }, "statistic" },
    { { T("a"), NULL, NULL, T("dfi"), T("jump"), NULL, T("3"), NULL, NULL }, "no_data" },
    { { T("a"), NULL, NULL, T("dfi"), NULL, T(">="), T("3"), NULL, NULL }, "op" },
    { { T("a"), NULL, NULL, T("dfi"), NULL, NULL, NULL, NULL, NULL }, "value" },
    { { T("a"), NULL, NULL, T("dfi"), NULL, NULL, T("nan"), NULL, NULL }, "value" },
    { { T("a"), NULL, NULL, T("dfi"), NULL, NULL, T("3x"), NULL, NULL }, "value" },
    { { T("a"), NULL, NULL, T("dfi"), T("slope"), NULL, T("3"), NULL, NULL }, "window" },
    { { T("a"), NULL, NULL, T("dfi"), NULL, NULL, T("3"), T("9"), NULL }, "window" },
    { { T("a"), NULL, NULL, T("dfi"), T("no_data"), NULL, T("3"), T("9"), NULL }, "no_data" },
    { { T("a"), NULL, NULL, T("dfi"), NULL, NULL, T("3"), NULL, T("-1") }, "hold" },
};

START_TEST(settings_become_rules)
{
    struct fire_error error = { 0 };
    struct alert_rule rule;
    const enum fire_status status =
        config_alert_read(&alert_cases[_i].text, "fired.yaml:3", &rule, &error);

    if (!alert_cases[_i].wrong) {
        ck_assert_int_eq(status, FIRE_OK);
        return;
    }
    ck_assert_int_eq(status, FIRE_BAD_REQUEST);
    ck_assert_msg(strstr(error.message, alert_cases[_i].wrong) != NULL, "%s", error.message);
    ck_assert_ptr_nonnull(strstr(error.message, "fired.yaml:3"));
}
END_TEST

/* --- webhook ---------------------------------------------------------------------------------- */

#define REQUESTS_MAX 16

/* Answers each connection with the next code and keeps what was sent. */
struct receiver {
    int listening;
    uint16_t port;
    pthread_t thread;
    const int *codes; /* ended by 0 */
    char requests[REQUESTS_MAX][2048];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t count;
};

static size_t read_request(int connection, char *text, size_t bytes)
{
    size_t used = 0, wanted = bytes - 1;

    while (used < wanted) {
        const ssize_t got = read(connection, text + used, bytes - 1 - used);
        const char *body, *length;

        if (got <= 0)
            break;
        used += (size_t)got;
        text[used] = '\0';
        body = strstr(text, "\r\n\r\n");
        length = strstr(text, "Content-Length: ");
        if (body && length)
            wanted = (size_t)(body + 4 - text) + strtoul(length + 16, NULL, 10);
    }
    return used;
}

static void *receive(void *data)
{
    struct receiver *receiver = data;

    for (size_t i = 0; receiver->codes[i]; i++) {
        const int connection = accept(receiver->listening, NULL, NULL);
        char answer[128];

        if (connection < 0)
            return NULL;
        (void)read_request(connection, receiver->requests[i], sizeof(receiver->requests[i]));
        snprintf(answer, sizeof(answer),
                 "HTTP/1.1 %d x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                 receiver->codes[i]);
        ck_assert_int_gt((int)write(connection, answer, strlen(answer)), 0);
        close(connection);
        pthread_mutex_lock(&receiver->lock);
        receiver->count++;
        pthread_cond_broadcast(&receiver->changed);
        pthread_mutex_unlock(&receiver->lock);
    }
    return NULL;
}

static void receiver_open(struct receiver *receiver, const int *codes)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof(name);

    memset(receiver, 0, sizeof(*receiver));
    pthread_mutex_init(&receiver->lock, NULL);
    pthread_cond_init(&receiver->changed, NULL);
    receiver->codes = codes;
    receiver->listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(receiver->listening, (struct sockaddr *)&name, sizeof(name)), 0);
    ck_assert_int_eq(listen(receiver->listening, 8), 0);
    ck_assert_int_eq(getsockname(receiver->listening, (struct sockaddr *)&name, &bytes), 0);
    receiver->port = ntohs(name.sin_port);
    ck_assert_int_eq(pthread_create(&receiver->thread, NULL, receive, receiver), 0);
}

static void receiver_wait(struct receiver *receiver, size_t count)
{
    pthread_mutex_lock(&receiver->lock);
    while (receiver->count < count)
        pthread_cond_wait(&receiver->changed, &receiver->lock); /* Check's timeout is the limit */
    pthread_mutex_unlock(&receiver->lock);
}

static void receiver_close(struct receiver *receiver)
{
    pthread_join(receiver->thread, NULL);
    close(receiver->listening);
}

/* 503 and 429 are tried again with the same number and a fresh signature; 400 is final; then the
 * next one comes. */
START_TEST(a_delivery_is_signed_and_tried_again)
{
    static const int codes[] = { 503, 429, 200, 400, 204, 0 };
    static const char *const ids[] = { "1", "1", "1", "2", "3" };
    static const char *const bodies[] = { "{\"a\":1}", "{\"b\":2}", "{\"c\":3}" };
    char path[] = "webhook-secret.XXXXXX", url[64], header[96], signature[80], timestamp[32];
    struct webhook_settings settings = { .url = url, .secret_file = path, .pause_s = 0.01 };
    const int file = mkstemp(path);
    struct receiver receiver;
    struct webhook *webhook;

    ck_assert_int_eq((int)write(file, "sesame\n", 7), 7);
    close(file);
    receiver_open(&receiver, codes);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/hook", receiver.port);
    ck_assert_int_eq(webhook_open(&settings, &webhook, NULL), FIRE_OK);
    for (size_t i = 0; i < 3; i++)
        ck_assert(webhook_send(webhook, bodies[i]));
    receiver_wait(&receiver, 5);
    webhook_close(webhook);
    receiver_close(&receiver);
    for (size_t i = 0; i < 5; i++) {
        const char *text = receiver.requests[i], *at = strstr(text, "X-Fired-Timestamp: ");

        ck_assert_msg(strncmp(text, "POST /hook ", 11) == 0, "%s", text);
        snprintf(header, sizeof(header), "X-Fired-Delivery: %s\r\n", ids[i]);
        ck_assert_msg(strstr(text, header) != NULL, "%zu: %s", i, text);
        ck_assert_ptr_nonnull(at);
        snprintf(timestamp, sizeof(timestamp), "%.*s", (int)strcspn(at + 19, "\r"), at + 19);
        ck_assert(webhook_sign("sesame", 6, timestamp, strstr(text, "\r\n\r\n") + 4, signature));
        ck_assert_msg(strstr(text, signature) != NULL, "%zu: %s\nwanted %s", i, text, signature);
    }
    unlink(path);
}
END_TEST

/* HMAC-SHA256 of a message known elsewhere: RFC 4231's second case has no dot, so this one was
 * computed with openssl dgst. */
START_TEST(the_signature_is_hmac_sha256)
{
    char text[80];

    (void)webhook_sign("Jefe", 4, "what do ya want ", "for nothing?", text);
    ck_assert_str_eq(text,
                     "sha256=83fb3421ec48dc8ee8cd58e1f03bb1f80ae0110c64a82771c98a0cea22cecdd2");
}
END_TEST

/* Nobody listens: it gives up after its tries; a close in the middle does not wait for them. */
START_TEST(a_close_does_not_wait_for_tries)
{
    const struct webhook_settings settings = { .url = "http://127.0.0.1:1/", .pause_s = 3600.0 };
    struct webhook *webhook;

    ck_assert_int_eq(webhook_open(&settings, &webhook, NULL), FIRE_OK);
    for (uint32_t i = 0; i < WEBHOOK_QUEUE_MAX; i++)
        ck_assert(webhook_send(webhook, "{}"));
    while (webhook_send(webhook, "{}")) { /* one may be with the thread; then the queue is full */
    }
    webhook_close(webhook);
}
END_TEST

START_TEST(bad_settings_of_a_webhook_are_refused)
{
    static const struct webhook_settings cases[] = {
        { .url = "ftp://host/" },
        { .url = "host" },
        { .url = "http://host/", .secret_file = "no/such/file" },
        { .url = "http://host/", .secret_file = "/dev/null" },
    };
    struct fire_error error = { 0 };
    struct webhook *webhook;

    ck_assert_int_ne(webhook_open(&cases[_i], &webhook, &error), FIRE_OK);
    ck_assert_ptr_null(webhook);
    ck_assert_msg(strncmp(error.field, "alert_", 6) == 0, "%s", error.message);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("alerts");
    TCase *cases = tcase_create("alerts");
    SRunner *runner;
    int failed;

    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, a_threshold_holds_before_it_fires);
    tcase_add_test(cases, series_are_told_apart);
    tcase_add_test(cases, a_slope_looks_at_its_window);
    tcase_add_test(cases, silence_is_noticed);
    tcase_add_test(cases, a_reload_keeps_what_stays);
    tcase_add_test(cases, what_fired_before_a_restart_fires_on);
    tcase_add_test(cases, what_is_expected_may_fall_silent);
    tcase_add_test(cases, states_are_bounded);
    tcase_add_loop_test(cases, settings_become_rules, 0,
                        (int)(sizeof(alert_cases) / sizeof(alert_cases[0])));
    tcase_add_test(cases, a_delivery_is_signed_and_tried_again);
    tcase_add_test(cases, the_signature_is_hmac_sha256);
    tcase_add_test(cases, a_close_does_not_wait_for_tries);
    tcase_add_loop_test(cases, bad_settings_of_a_webhook_are_refused, 0, 4);
    suite_add_tcase(suite, cases);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
