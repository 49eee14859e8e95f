/* firectl_args_check: what the parser cannot see of the options: whether they fit each other. Texts
 * that need a file or a daemon are checked where they are used. */
#include <stdlib.h>
#include <string.h>

#include "firectl.h"

/* Who computes. A daemon's address is for the commands that can use one; what it says about TLS or
 * credentials is checked when it is used. */
static enum firectl_exit check_remote(struct firectl_args *args)
{
    const char *given = args->remote.address;

    if (given && args->local) {
        firectl_say("--local computes in this process, --addr asks a daemon: give one of them");
        return FIRECTL_USAGE;
    }
    if (!given && !args->local && args->command != FIRECTL_PRESETS &&
        args->command != FIRECTL_SELFTEST)
        args->remote.address = getenv("FIRED_ADDR");
    if (args->remote.address && !args->remote.address[0])
        args->remote.address = NULL;
    if (given && !args->remote.address) {
        firectl_say("--addr is empty; give unix:PATH or HOST:PORT, or --local");
        return FIRECTL_USAGE;
    }
    if (args->remote.address && (args->threads || args->path)) {
        firectl_say("--%s is about computing in this process, but %s names a daemon: add --local, "
                    "or leave out --%s (the daemon has its own)",
                    args->threads ? "threads" : "path", given ? "--addr" : "FIRED_ADDR",
                    args->threads ? "threads" : "path");
        return FIRECTL_USAGE;
    }
    if (!args->remote.certificate_file != !args->remote.key_file) {
        firectl_say("--cert and --key belong together: give both or neither");
        return FIRECTL_USAGE;
    }
    return FIRECTL_DONE;
}

/* Options that are no more than ill-formed texts. */
static enum firectl_exit check_texts(const struct firectl_args *args)
{
    bool known = !args->path || strcmp(args->path, "auto") == 0;

    for (size_t i = 0; !known && i < FIRECTL_PATH_COUNT; i++)
        known = strcmp(args->path, firectl_paths[i]) == 0;
    if (!known) {
        firectl_say("no path is called '%.40s'; known are auto, portable, avx2, avx512, amx",
                    args->path);
        return FIRECTL_USAGE;
    }
    for (size_t i = 0; i < args->ties.count; i++) {
        const char *equals = strchr(args->ties.items[i], '=');

        if (!equals || equals == args->ties.items[i] || !equals[1]) {
            firectl_say("--tie takes two tensor names, A=B, got '%.100s'", args->ties.items[i]);
            return FIRECTL_USAGE;
        }
    }
    if (args->output && !args->output[0]) {
        firectl_say("-o is empty; name a file to write, or - for standard output");
        return FIRECTL_USAGE;
    }
    return FIRECTL_DONE;
}

/* What no single option shows. */
static enum firectl_exit check_together(const struct firectl_args *args)
{
    const char *name = firectl_command_name(args->command);

    if (args->command == FIRECTL_COMPARE && args->input_count < 2) {
        firectl_say("compare needs two files; see firectl compare --help");
        return FIRECTL_USAGE;
    }
    if (args->command < FIRECTL_COMPARE && args->input_count < 1) {
        firectl_say("%s needs a file; see firectl %s --help", name, name);
        return FIRECTL_USAGE;
    }
    if ((args->command == FIRECTL_SHOW || args->command == FIRECTL_ADVISE ||
         args->command == FIRECTL_EXPORT) &&
        args->input_count < 1) {
        firectl_say("%s needs the id of a run; firectl runs lists them", name);
        return FIRECTL_USAGE;
    }
    if (args->command == FIRECTL_REINIT && !args->output && !args->dry_run) {
        firectl_say("reinit needs -o OUT, or --dry-run to write nothing");
        return FIRECTL_USAGE;
    }
    if (args->state_out && !args->state) {
        firectl_say("--state-out says where the new optimizer state goes; give the old one with "
                    "--state FILE");
        return FIRECTL_USAGE;
    }
    if (args->state && args->output && strcmp(args->output, "-") == 0 && !args->state_out) {
        firectl_say("the weights go to standard output; say where the state goes with --state-out "
                    "FILE");
        return FIRECTL_USAGE;
    }
    if (args->per_matrix && !args->json) {
        firectl_say("--per-matrix needs --json");
        return FIRECTL_USAGE;
    }
    return FIRECTL_DONE;
}

enum firectl_exit firectl_args_check(struct firectl_args *args)
{
    enum firectl_exit code = check_remote(args);

    if (code == FIRECTL_DONE)
        code = check_texts(args);
    return code == FIRECTL_DONE ? check_together(args) : code;
}
