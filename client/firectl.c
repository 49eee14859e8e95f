/* firectl: finds the command and runs it. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "firectl.h"

static const struct {
    const char *name;
    const char *summary;
    enum firectl_exit (*run)(const struct firectl_args *args);
} commands[FIRECTL_COMMAND_COUNT] = {
    [FIRECTL_REINIT] = { "reinit", "project the weights of a checkpoint and write a new one",
                         firectl_reinit },
    [FIRECTL_ANALYZE] = { "analyze", "statistics of a checkpoint; nothing is written",
                          firectl_analyze },
    [FIRECTL_COMPARE] = { "compare", "what differs between two checkpoints, tensor by tensor",
                          firectl_compare },
    [FIRECTL_PRESETS] = { "presets", "list the presets, or every option of one", firectl_presets },
    [FIRECTL_SELFTEST] = { "selftest",
                           "check this machine's compute paths against the float64 "
                           "reference",
                           firectl_selftest },
    [FIRECTL_HEALTH] = { "health", "does a daemon serve? exit code 0 if so", firectl_health },
    [FIRECTL_STATUS] = { "status", "what a daemon is and does: devices, batches, tenants, memory",
                         firectl_status },
    [FIRECTL_PING] = { "ping", "round trips to a daemon and how long they take", firectl_ping },
    [FIRECTL_STAT] = { "stat", "a daemon's rates, one row every interval", firectl_stat },
    [FIRECTL_TOP] = { "top", "a daemon at a glance, on the whole screen", firectl_top },
    [FIRECTL_DRAIN] = { "drain", "let a daemon finish its work and end", firectl_drain },
    [FIRECTL_RUNS] = { "runs", "the training runs a daemon knows", firectl_runs },
    [FIRECTL_SHOW] = { "show", "how the layers of a run do over time, as a picture", firectl_show },
    [FIRECTL_WATCH] = { "watch", "new points and events of a run, as they come", firectl_watch },
    [FIRECTL_ADVISE] = { "advise", "which layers lose plasticity, since when, and what would help",
                         firectl_advise },
    [FIRECTL_EXPORT] = { "export", "the history of a run as CSV, JSON or safetensors",
                         firectl_export },
    [FIRECTL_POINTS] = { "report", "send points to a run's history", firectl_points },
};

static volatile sig_atomic_t signal_seen;

const char *firectl_command_name(enum firectl_command command)
{
    return commands[command].name;
}

const char *firectl_command_summary(enum firectl_command command)
{
    return commands[command].summary;
}

void firectl_say(const char *format, ...)
{
    va_list arguments;

    fflush(stdout); /* keep the order people see on a terminal */
    fputs("firectl: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

enum firectl_exit firectl_fail(const struct fire_error *error)
{
    firectl_say("%s", error->message[0] ? error->message : fire_status_name(error->status));
    return FIRECTL_FAILED;
}

double firectl_now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int firectl_signal(void)
{
    return (int)signal_seen;
}

static void on_signal(int number)
{
    signal_seen = number;
}

void firectl_signals_init(void)
{
    /* A second signal kills at once: the first may wait for an eigensolve. */
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };
    struct sigaction hangup;

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* nohup has it ignored, and means that. */
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    /* A closed pipe and a limit on files are errors to report, after cleaning up. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

static void print_help(FILE *stream)
{
    fprintf(stream, "Usage: firectl COMMAND [OPTION...] [FILE...]\n"
                    "Restores the plasticity of neural networks: replaces weight matrices by their "
                    "nearest isometry.\n\nCommands:\n");
    for (size_t i = 0; i < FIRECTL_COMMAND_COUNT; i++)
        fprintf(stream, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(stream,
            "\nfirectl COMMAND --help says more about one of them; firectl --version is %s.\n"
            "File commands compute in this process unless --addr or FIRED_ADDR names a daemon.\n\n"
            "Examples:\n"
            "  firectl reinit model.safetensors -o new.safetensors\n"
            "  firectl reinit checkpoint/ -o new/ --arch llama --only qk\n"
            "  firectl analyze model.safetensors --spectrum --json\n"
            "  firectl compare model.safetensors new.safetensors\n"
            "  firectl presets official-gpt\n"
            "  firectl status --addr unix:fired.sock\n"
            "  firectl advise my-run\n\n"
            "Exit codes: 0 done; 1 failure; 2 wrong usage; 3 a --fail-if threshold was crossed;\n"
            "64 + gRPC code when the daemon refused.\n",
            FIRE_VERSION);
}

static enum firectl_exit unknown_command(const char *word)
{
    const char *names[FIRECTL_COMMAND_COUNT];
    const char *near;

    for (size_t i = 0; i < FIRECTL_COMMAND_COUNT; i++)
        names[i] = commands[i].name;
    near = fire_nearest_name(word, names, FIRECTL_COMMAND_COUNT);
    if (near)
        firectl_say("unknown command '%s', did you mean '%s'?", word, near);
    else
        firectl_say("unknown command '%s'; firectl --help lists them", word);
    return FIRECTL_USAGE;
}

static enum firectl_exit run_command(enum firectl_command command, int argc, char **argv)
{
    struct firectl_args args = { 0 };
    enum firectl_exit code = firectl_args_parse(command, argc, argv, &args);

    if (code == FIRECTL_DONE)
        code = commands[command].run(&args);
    firectl_args_release(&args);
    if (code == FIRECTL_DONE && (fflush(stdout) != 0 || ferror(stdout))) {
        firectl_say("could not write to standard output: %s", strerror(errno));
        code = FIRECTL_FAILED;
    }
    if (firectl_signal())
        return (enum firectl_exit)(128 + firectl_signal());
    return code;
}

int main(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;

    if (!word) {
        print_help(stderr);
        return FIRECTL_USAGE;
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-?") == 0 || strcmp(word, "help") == 0 ||
        strcmp(word, "-h") == 0) {
        print_help(stdout);
        return fflush(stdout) == 0 ? FIRECTL_DONE : FIRECTL_FAILED;
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("firectl %s\n", fire_version());
        return fflush(stdout) == 0 ? FIRECTL_DONE : FIRECTL_FAILED;
    }
    if (word[0] == '-') {
        firectl_say("expected a command before '%s'; firectl --help lists them", word);
        return FIRECTL_USAGE;
    }
    for (size_t i = 0; i < FIRECTL_COMMAND_COUNT; i++) {
        if (strcmp(word, commands[i].name) == 0)
            return (int)run_command((enum firectl_command)i, argc - 1, argv + 1);
    }
    return (int)unknown_command(word);
}
